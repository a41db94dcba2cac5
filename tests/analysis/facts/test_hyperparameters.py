"""What a number in an optimizer's step comes of."""

from __future__ import annotations

from typing import Any

import pytest

from aten_dump.analysis.facts.hyperparameters import numbers_sentence
from aten_dump.dump.optimizer_groups import OptimizerGroup


def group(**settings: Any) -> list[OptimizerGroup]:
    return [OptimizerGroup("AdamW", 0, 0, settings, settings)]


ADAM = {"lr": 1e-3, "weight_decay": 0.0946, "betas": (0.9, 0.999), "eps": 1e-8}


def test_a_decay_is_read_as_learning_rate_times_weight_decay() -> None:
    other = {**ADAM, "weight_decay": 0.01}
    text = numbers_sentence(1 - 1e-3 * 0.0946, 1 - 1e-3 * 0.01, group(**ADAM), group(**other))
    assert text == (
        "0.9999054 is 1 - lr x weight_decay of lr 0.001, weight_decay 0.0946; "
        "in the baseline of lr 0.001, weight_decay 0.01"
    )


@pytest.mark.parametrize(
    ("name", "give"),
    [
        ("-lr", lambda s: -s["lr"]),
        ("1 - beta1", lambda s: 1 - s["betas"][0]),
        ("beta2", lambda s: s["betas"][1]),
        ("eps", lambda s: s["eps"]),
        ("weight_decay", lambda s: s["weight_decay"]),
        ("-lr / (1 - beta1 ^ step)", lambda s: -s["lr"] / (1 - s["betas"][0] ** 7)),
    ],
)
def test_what_optimizers_give_their_ops(name: str, give: Any) -> None:
    other = {"lr": 2e-3, "weight_decay": 0.02, "betas": (0.8, 0.99), "eps": 1e-6}
    text = numbers_sentence(give(ADAM), give(other), group(**ADAM), group(**other))
    assert f" is {name} of " in text


def test_a_number_of_nothing_recorded_is_not_explained() -> None:
    assert numbers_sentence(0.123, 0.456, group(**ADAM), group(**ADAM)) == ""
    assert numbers_sentence(1e-3, 0.456, group(**ADAM), group(**ADAM)) == "", "the other side's is none"
    assert numbers_sentence(1e-3, 1e-3, [], []) == ""
