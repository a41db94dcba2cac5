"""What is recorded: steps, ranks, level, ops, modules; and when nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aten_dump import DumpConfig, DumpMode, open_dump
from aten_dump.capture.calls import ops
from aten_dump.capture.naming.call_name import API, ATEN, MODULE, NODE, CallName
from aten_dump.capture.naming.selection import Selection
from tests.capture.bits import calls
from tests.models import build, train_step

Record = Callable[..., Any]


def modes() -> tuple[int, int]:
    return torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()


@pytest.mark.parametrize(
    ("steps", "recorded"),
    [
        ("all", range(12)),
        ("0", [0]),
        ("0|5-8", [0, 5, 6, 7, 8]),
        ("2 - 3 | 11", [2, 3, 11]),
        (4, [4]),
        ([1, 3], [1, 3]),
        ("20", []),
    ],
)
def test_steps(tmp_path: Path, steps: Any, recorded: Any) -> None:
    on_stack = []
    idle = modes()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), steps=steps)) as dump:
        for _ in range(12):
            on_stack.append(modes() != idle)
            torch.ones(2).exp()
            dump.step()
    assert [i for i, on in enumerate(on_stack) if on] == list(recorded)
    if recorded:
        opened = open_dump(str(tmp_path / "dump"))
        assert list(opened.steps) == list(recorded)
        assert all("aten::exp" in [c.op for c in opened.step(i).rank(0).calls] for i in recorded)
    assert {p.name for p in (tmp_path / "dump").glob("step*")} == {f"step{i}" for i in recorded}


def test_an_idle_step_has_no_hooks(tmp_path: Path) -> None:
    from tests.capture.process_state import changes, module_hooks, picture

    program = build("resnet")
    before, hooks = picture(), module_hooks(program.model)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), steps="1"), model=program.model) as dump:
        for step in range(3):
            train_step(program)
            if step != 1:
                now = picture()
                relevant = ("dispatch modes", "function modes", "saved tensor hooks")
                assert [now[k] for k in relevant] == [before[k] for k in relevant]
            dump.step()
    assert changes(before, picture()) == []
    assert module_hooks(program.model) == hooks


def test_graph_of_an_idle_step_run_in_a_recorded_one_and_back(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), steps="1")) as dump:
        y = x.exp()
        dump.step()
        z = x.exp()
        y.sum().backward()
        dump.step()
        z.sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach().exp())  # type: ignore[arg-type]
    rank = open_dump(str(tmp_path / "dump")).step(1).rank(0)
    assert "aten::mul.Tensor" in [c.op for c in calls(rank, kind="aten", phase="backward")]


@pytest.mark.parametrize(
    ("ranks", "expected"), [("all", True), ("0", True), ("1|3-5", False), (0, True), ([1, 2], False)]
)
def test_ranks(tmp_path: Path, ranks: Any, expected: bool) -> None:
    idle = modes()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), ranks=ranks)):
        assert (modes() != idle) is expected
        torch.ones(2).exp()
    assert (tmp_path / "dump" / "step0" / "rank0").exists() is expected


def test_rank_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), ranks="2-3")):
        torch.ones(2).exp()
    dump = open_dump(str(tmp_path / "dump"))
    assert list(dump.ranks) == [3]
    assert "aten::exp" in [c.op for c in dump.step(0).rank(3).calls]


@pytest.mark.parametrize(
    ("level", "kinds"),
    [("aten", {"aten", "node"}), ("api", {"api"}), ("module", {"module"}), ("mix", {"aten", "node", "api", "module"})],
)
def test_level(record: Record, level: str, kinds: set[str]) -> None:
    program = build("gpt2")
    rank = record(lambda: train_step(program), program.model, level=level)
    assert {c.kind for c in rank.calls} == kinds
    assert {c.phase for c in rank.calls} >= ({"forward", "backward"})


def test_levels_agree_on_names(tmp_path: Path) -> None:
    """A call has the same name whatever else is recorded."""
    names: dict[str, dict[str, list[str]]] = {}
    for level in ("aten", "api", "module", "mix"):
        program = build("llama")
        with DumpMode(DumpConfig(path=str(tmp_path / level), level=level), model=program.model) as dump:
            train_step(program)
            dump.step()
        rank = open_dump(str(tmp_path / level)).step(0).rank(0)
        names[level] = {k: [c.name for c in calls(rank, kind=k)] for k in ("aten", "api", "module")}
    for level in ("aten", "api", "module"):
        assert names[level][level] == names["mix"][level] and len(names[level][level]) > 10


def test_joint_tree_order(record: Record) -> None:
    """Ids follow the order in which calls began; a child begins and ends within its parent."""
    program = build("gpt2")
    rank = record(lambda: train_step(program), program.model)
    ids = [c.id for c in rank.calls]
    assert ids == sorted(ids) and len(set(ids)) == len(ids)
    nested = 0
    for call in rank.calls:
        if (
            call.parent is not None
            and call.thread == call.parent.thread
            and not (call.kind == "api" and call.phase == "backward")
        ):
            assert call.parent.id < call.id
            assert call.parent.start_ns <= call.start_ns
            nested += 1
    assert nested > 300


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        (["aten::addmm"], {"aten::addmm"}),
        (["ADDMM"], {"aten::addmm"}),
        (["regex:aten::(addmm|tanh)$"], {"aten::addmm", "aten::tanh"}),
        (
            ["layer_norm", "aten::_softmax"],
            {"aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::_softmax"},
        ),
    ],
)
def test_ops(record: Record, ops: list[str], expected: set[str]) -> None:
    program = build("gpt2")
    rank = record(lambda: train_step(program), program.model, ops=ops, level="aten")
    assert {c.op for c in calls(rank, kind="aten", phase="forward")} == {op for op in expected if "backward" not in op}
    assert {c.op for c in calls(rank, kind="aten")} >= {op for op in expected if "backward" not in op}
    assert not {c.op for c in calls(rank, kind="aten")} & {"aten::embedding", "aten::bmm", "aten::nll_loss_forward"}


def test_exclude_ops(record: Record) -> None:
    program = build("gpt2")
    full = record(lambda: train_step(program), program.model, level="aten")
    program = build("gpt2")
    rank = record(lambda: train_step(program), program.model, level="aten", exclude_ops=["view", "aten::t"])
    ops = {c.op for c in calls(rank, kind="aten")}
    assert "aten::addmm" in ops and "aten::transpose.int" in ops
    assert not any("view" in op for op in ops) and "aten::t" not in ops
    assert any("view" in c.op for c in calls(full, kind="aten"))


def test_selected_ops_see_the_versions_of_writes_that_are_not_selected(record: Record) -> None:
    x = torch.zeros(3)

    def body() -> None:
        x.exp()
        x.add_(1)
        x.exp()

    rank = record(body, ops=["aten::exp"], level="aten", data="full")
    first, second = calls(rank, kind="aten")
    assert first.inputs[0][0].tensor().tolist() == [0] * 3
    assert second.inputs[0][0].tensor().tolist() == [1] * 3
    assert (first.inputs[0][0].stats.max, second.inputs[0][0].stats.max) == (0, 1)


@pytest.mark.parametrize(
    ("globs", "inside", "outside"),
    [
        (["transformer.h.1.*"], "transformer.h.1.attn.c_attn", "transformer.h.0.attn.c_attn"),
        (["*.mlp*"], "transformer.h.0.mlp.c_fc", "transformer.h.0.ln_1"),
        (["lm_head", "transformer.wte"], "lm_head", "transformer.h.0"),
    ],
)
def test_modules(record: Record, globs: list[str], inside: str, outside: str) -> None:
    program = build("gpt2")
    rank = record(lambda: train_step(program), program.model, modules=globs)
    fqns = {c.module for c in calls(rank, phase="forward")}
    assert inside in fqns and outside not in fqns
    assert any(c.kind == "aten" and c.module == inside for c in rank.calls)


def test_pause_and_resume(tmp_path: Path) -> None:
    idle = modes()
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), data="tensor")) as dump:
        x = torch.ones(2)
        x.exp()
        dump.pause()
        assert modes() == idle
        x.log()
        x.add_(5)
        dump.resume()
        x.sin()
        dump.step()
    rank = open_dump(str(tmp_path / "dump")).step(0).rank(0)
    ops = [c.op for c in calls(rank, kind="aten")]
    assert "aten::exp" in ops and "aten::sin" in ops and "aten::log" not in ops
    assert calls(rank, op="aten::sin")[0].inputs[0][0].tensor().tolist() == [6, 6]


def test_a_write_between_steps_that_is_not_recorded(tmp_path: Path) -> None:
    """A tensor changed in an idle step is read anew in the next recorded one."""
    x = torch.zeros(2)
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"), steps="0|2", data="full")) as dump:
        for _ in range(3):
            x.exp()
            x.add_(1)
            dump.step()
    values = [calls(open_dump(str(tmp_path / "dump")).step(i).rank(0), op="aten::exp")[0].inputs[0][0] for i in (0, 2)]
    assert [v.tensor().tolist() for v in values] == [[0, 0], [2, 2]]
    assert [v.stats.max for v in values] == [0, 2]


def test_names_count_from_zero_in_every_step(tmp_path: Path) -> None:
    with DumpMode(DumpConfig(path=str(tmp_path / "dump"))) as dump:
        for _ in range(2):
            torch.ones(2).exp().exp()
            dump.step()
    for step in (0, 1):
        rank = open_dump(str(tmp_path / "dump")).step(step).rank(0)
        assert [c.name for c in calls(rank, kind="aten", op="aten::exp")] == [
            "Aten.exp.0.forward",
            "Aten.exp.1.forward",
        ]
        assert [c.name for c in calls(rank, kind="api")][-2:] == ["Tensor.exp.0.forward", "Tensor.exp.1.forward"]


def test_attribute_reads_are_not_calls(record: Record) -> None:
    x = torch.ones(2, 3)
    rank = record(lambda: (x.shape, x.dtype, x.grad, x.size(), x.dim(), x.device, x.T))
    names = [c.name for c in calls(rank, kind="api")]
    assert not any("__get__" in name or "size" in name or "shape" in name or "dim" in name for name in names)


def test_stacks(record: Record) -> None:
    rank = record(lambda: nn.Linear(2, 2)(torch.ones(1, 2)), stacks=True)
    frames = list(calls(rank, kind="aten", op="aten::addmm")[0].stack)
    assert any(__file__ in str(frame) for frame in frames)
    rank = record(lambda: torch.ones(2).exp(), stacks=False)
    assert not list(calls(rank, op="aten::exp")[0].stack or ())


def test_run_json(record: Record, tmp_path: Path) -> None:
    record(lambda: torch.ones(2).exp())
    run = json.loads((tmp_path / "dump0" / "run.json").read_text())
    assert torch.__version__ in json.dumps(run)
    assert run["recorder"] == ("pure Python" if str(ops.__file__).endswith(".py") else "compiled")
    assert "statistic" in json.dumps(run["config"])


ADD = CallName("aten::add.Tensor", "Aten", "add")
LINEAR = CallName("torch.nn.functional.linear", "Functional", "linear")


def takes(name: CallName = ADD, kind: int = ATEN, fqn: str = "", **config: Any) -> bool:
    return Selection(DumpConfig(path="unused", **config)).records(kind, name, fqn)


@pytest.mark.parametrize(
    ("level", "kinds"),
    [("aten", {ATEN, NODE}), ("api", {API}), ("module", {MODULE}), ("mix", {ATEN, API, MODULE, NODE})],
)
def test_a_level_is_a_set_of_kinds(level: str, kinds: set[int]) -> None:
    for chosen in ({}, {"exclude_ops": ("nothing",)}):
        assert {kind for kind in (ATEN, API, MODULE, NODE) if takes(kind=kind, level=level, **chosen)} == kinds


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("aten::add", True), ("aten::add.Tensor", True), ("aten::add.Scalar", False), ("aten::ad", False),
        ("aten::add.", False), ("Aten.add", True), ("Aten.ad", False), ("Functional.add", False),
        ("DD.T", True), ("add_", False), ("regex:^aten::a.d", True), ("regex:^add", False), ("regex:\\.add$", True),
    ],
)  # fmt: skip
def test_patterns_of_ops(pattern: str, found: bool) -> None:
    assert takes(ops=(pattern,)) is found
    assert takes(exclude_ops=(pattern,)) is not found


def test_a_whole_name_with_a_prefix_is_no_part_of_a_name() -> None:
    assert takes(LINEAR, API, ops=("Functional.linear",))
    assert not takes(
        CallName("torch.nn.functional.bilinear", "Functional", "bilinear"), API, ops=("Functional.linear",)
    )
    assert takes(CallName("torch.nn.functional.bilinear", "Functional", "bilinear"), API, ops=("linear",))
    assert not takes(LINEAR, API, ops=("linear",), exclude_ops=("Functional.linear",)), "what is left out goes first"


@pytest.mark.parametrize(
    ("glob", "fqn", "found"),
    [
        ("layer1", "layer1", True), ("layer1", "layer1.conv.weight", True), ("layer1", "layer10", False),
        ("layer1", "net.layer1", False), ("*.conv", "layer1.conv.bn", True), ("*", "", True), ("layer?", "layer12", False),
        ("Layer1", "layer1", False),
    ],
)  # fmt: skip
def test_a_glob_takes_a_module_and_all_in_it(glob: str, fqn: str, found: bool) -> None:
    assert takes(fqn=fqn, modules=(glob,)) is found


def test_modules_are_left_out_of_a_selection_of_ops_unless_they_are_chosen_too() -> None:
    linear = CallName("Linear", "Module", "fc")
    assert not takes(linear, MODULE, "fc", ops=("linear",))
    assert takes(linear, MODULE, "fc", ops=("add",), modules=("fc",))
    assert not takes(linear, MODULE, "other", ops=("add",), modules=("fc",))
    assert not takes(LINEAR, API, "fc", ops=("add",), modules=("fc",))


def test_what_was_decided_for_one_module_is_not_said_of_another() -> None:
    chosen = Selection(DumpConfig(path="unused", modules=("a",)))
    assert [chosen.records(ATEN, ADD, fqn) for fqn in ("a", "b", "a", "b")] == [True, False, True, False]


def test_a_filter_says_what_it_takes_and_whether_that_is_all() -> None:
    everything = Selection(DumpConfig(path="unused"))
    assert (everything.takes_all, everything.everything, everything.text) == (True, True, "level='mix'")
    aten = Selection(DumpConfig(path="unused", level="aten"))
    assert (aten.takes_all, aten.everything) == (False, True)
    some = Selection(DumpConfig(path="unused", ops=("add",), modules=("fc",)))
    assert (some.takes_all, some.everything) == (False, False)
    assert "ops=" in some.text and "add" in some.text and "modules=" in some.text and "exclude_ops" not in some.text
