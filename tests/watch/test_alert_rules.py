"""Each rule finds its bug in a real run, says it once, and is silent on runs that are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aten_dump import ConfigError, Watch
from aten_dump.watch.alert_rules import Alert, AlertRules
from tests.sampling import diagonal

Step = Callable[[int], Tensor]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))


def alerts(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Step, steps: int = 24
) -> list[Alert]:
    with Watch(every=1, to=folder / "watch.jsonl", model=model, optimizer=optimizer, modules="*") as watch:
        for step in range(steps):
            loss(step).backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch.alerts


def classify(model: nn.Module, factor: Callable[[int], float] = lambda step: 1.0) -> Step:
    return lambda step: F.cross_entropy(model(torch.randn(16, 6)), torch.randint(0, 3, (16,))) * factor(step)


@pytest.mark.parametrize("steps", [range(5, 6), range(5, 9)], ids=["one", "four"])
def test_nan_is_said_once(steps: range, tmp_path: Path) -> None:
    model = net()
    factor = classify(model, lambda step: float("nan") if step in steps else 1.0)
    found = alerts(tmp_path, model, torch.optim.SGD(model.parameters(), 0.0), factor)
    assert [(alert.step, alert.rule) for alert in found] == [(5, "nonfinite")]
    assert {"loss/", "gradient/0.weight"} <= set(found[0].names) and "activation/0" not in found[0].names
    assert "NaN" in found[0].text and found[0].text.startswith("step 5: ")


def test_a_spike_of_loss_and_gradients(tmp_path: Path) -> None:
    model = net()
    found = alerts(
        tmp_path, model, torch.optim.SGD(model.parameters(), 1e-3), classify(model, lambda s: 1 + 99 * (s == 15))
    )
    assert [(alert.step, alert.rule) for alert in found] == [(15, "jump")]
    assert {"loss/", "gradient/0.weight", "gradient/2.bias"} <= set(found[0].names)


def test_dead_units(tmp_path: Path) -> None:
    model = net()
    with torch.no_grad():
        model[0].bias -= 100
    found = alerts(tmp_path, model, torch.optim.SGD(model.parameters(), 1e-3), classify(model), 4)
    assert [(alert.step, alert.rule, alert.names) for alert in found] == [(1, "dead", ("activation/1",))]
    assert "100% of its units" in found[0].text


def test_a_parameter_that_does_not_move(tmp_path: Path) -> None:
    model = net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)  # below what bfloat16 can add
    step = classify(nn.Sequential(_To(torch.bfloat16), model, _To(torch.float32)))
    found = alerts(tmp_path, model, optimizer, step, 3)
    assert [(alert.step, alert.rule) for alert in found] == [(1, "ratio")]
    assert "update/0.weight" in found[0].names and "does not move" in found[0].text


class _To(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def test_a_learning_rate_far_too_high(tmp_path: Path) -> None:
    model = net()
    found = alerts(tmp_path, model, torch.optim.Adam(model.parameters(), 3.0), classify(model), 3)
    assert (1, "ratio") in [(alert.step, alert.rule) for alert in found]
    assert not any(name.endswith("bias") for alert in found if alert.rule == "ratio" for name in alert.names)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 3e-4),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
}
MODELS = {
    "net": net,
    "zero-initialized head": lambda: _zeroed(net()),
    "norm": lambda: nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 3)),
    "bfloat16": lambda: nn.Sequential(_To(torch.bfloat16), net().bfloat16(), _To(torch.float32)),
}


def _zeroed(model: nn.Sequential) -> nn.Sequential:
    nn.init.zeros_(model[2].weight)
    return model


@pytest.mark.parametrize(("model", "optimizer"), diagonal(list(MODELS), list(OPTIMIZERS)))
def test_programs_that_are_right_raise_no_alert(model: str, optimizer: str, tmp_path: Path) -> None:
    if (model, optimizer) == ("bfloat16", "adamw"):
        pytest.skip("a rate of 3e-4 is lost in bfloat16: that is right, and said")
    made = MODELS[model]()
    assert alerts(tmp_path, made, OPTIMIZERS[optimizer](made.parameters()), classify(made), 30) == []


def test_a_warm_up_from_zero_and_a_frozen_group_raise_no_alert(tmp_path: Path) -> None:
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 1e-2}]
    optimizer = torch.optim.SGD(groups)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))

    def loss(step: int) -> Tensor:
        if step:
            warm_up.step()
        return classify(model)(step)

    assert alerts(tmp_path, model, optimizer, loss) == []


def test_a_step_that_a_scaler_skips_raises_no_alert(tmp_path: Path) -> None:
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with Watch(every=1, to=tmp_path / "watch.jsonl", model=model) as watch:
        for step in range(3):
            if step == 1:
                model[2].weight.register_hook(lambda grad: grad * float("inf"))
            scaler.scale(classify(model)(step)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            watch.step()
            if step == 1:
                model[2].weight._backward_hooks.clear()
                assert {"gradient.nan/2.weight", "gradient.inf/2.weight"} & set(watch.numbers)
                assert watch.numbers["loss"] < 10 and watch.numbers["loss_scale"] == 2.0**10
    assert watch.alerts == []


@pytest.mark.parametrize(
    ("limits", "found"),
    [({"jump": 0}, "jump is 0"), ({"ratio": (0.5, 0.1)}, "ratio is"), ({"dead": "x"}, "dead is 'x'")],
)
def test_a_limit_that_is_none_is_an_error(limits: dict[str, object], found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        AlertRules(**limits)  # type: ignore[arg-type]


def test_a_rule_can_be_left_out(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Watch(every=1, to=tmp_path / "w", model=model, rules=AlertRules(nonfinite=None)) as watch:
        (classify(model)(0) * float("nan")).backward()
        optimizer.step()
    assert not watch.alerts and watch.current_step == 1
