"""The table of rules of `check`."""

from __future__ import annotations

from typing import Final

from . import (
    flow_rules,
    layer_rules,
    loss_rules,
    memory_rules,
    missing_gradient_rules,
    optimizer_rules,
    pass_rules,
    precision_rules,
    rank_rules,
    scaler_rules,
)
from .rule import RankRule, Rule

RULES: Final[dict[str, Rule | RankRule]] = {
    rule.name: rule
    for rule in (
        *missing_gradient_rules.RULES,
        *optimizer_rules.RULES,
        *pass_rules.RULES,
        *scaler_rules.RULES,
        *loss_rules.RULES,
        *layer_rules.RULES,
        *flow_rules.RULES,
        *precision_rules.RULES,
        *memory_rules.RULES,
        *rank_rules.RULES,
    )
}
