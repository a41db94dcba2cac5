"""What a gradient scaler did, from the ops that it ran: by their bytes, or by their statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aten_dump.dump import open_dump
from aten_dump.dump.loss_scale import LossScale, loss_scales_of
from aten_dump.store import records as r
from tests.dump.building import Builder, value

UPDATE = ("self", "growth_tracker", "found_inf", "scale_growth_factor", "scale_backoff_factor", "growth_interval")


def scalar(builder: Builder, number: float, store: str | None) -> Any:
    id = builder.value(torch.tensor(number), store=store)
    if store is None:
        builder.emit(r.Statistics(r.STATISTICS, id, [1, number]))
    return value(id)


def update(builder: Builder, scale: float, found: float, after: float, store: str | None = "strided") -> None:
    op = builder.op("aten", "aten::_amp_update_scale_", "Aten", "_amp_update_scale_", UPDATE)
    args = [scalar(builder, scale, store), scalar(builder, 0.0, store), scalar(builder, found, store), 2.0, 0.5, 2000]
    out = scalar(builder, after, store)
    builder.call(op, args=args, outputs=out, written=["self", out])


def unscale(builder: Builder, inverse: float, found: float) -> None:
    name = "_amp_foreach_non_finite_check_and_unscale_"
    op = builder.op("aten", f"aten::{name}", "Aten", name, ("self", "found_inf", "inv_scale"))
    args = [[r.TREE_LIST], scalar(builder, 0.0, "strided"), scalar(builder, inverse, "strided")]
    builder.call(op, args=args, written=["found_inf", scalar(builder, found, "strided")])


def found_in(builder: Builder) -> list[LossScale]:
    return loss_scales_of(open_dump(builder.finish()).rank(0, 0).calls)


def numbers(scale: LossScale) -> tuple[float | None, bool | None, float | None]:
    return scale.scale, scale.found_inf, scale.next_scale


@pytest.mark.parametrize("store", ["strided", None])
def test_updates(builder: Builder, store: str | None) -> None:
    update(builder, 1024.0, 0.0, 2048.0, store)
    update(builder, 2048.0, 1.0, 1024.0, store)
    assert [numbers(scale) for scale in found_in(builder)] == [(1024.0, False, 2048.0), (2048.0, True, 1024.0)]


def test_an_unscaling_counts_only_where_nothing_was_updated(builder: Builder) -> None:
    unscale(builder, 1 / 512, 1.0)
    assert [numbers(scale) for scale in found_in(builder)] == [(512.0, True, None)]


def test_an_update_says_all(builder: Builder) -> None:
    unscale(builder, 1 / 512, 0.0)
    update(builder, 512.0, 0.0, 512.0)
    (scale,) = found_in(builder)
    assert scale.call.op == "aten::_amp_update_scale_"


def test_an_inverse_of_zero_is_no_scale(builder: Builder) -> None:
    unscale(builder, 0.0, 0.0)
    assert [numbers(scale) for scale in found_in(builder)] == [(None, False, None)]


def test_numbers_that_were_not_recorded(builder: Builder) -> None:
    op = builder.op("aten", "aten::_amp_update_scale_", "Aten", "_amp_update_scale_", UPDATE)
    many = value(builder.value(torch.ones(2)))
    gone = value(builder.value(torch.tensor(2.0), store=None))
    builder.call(op, args=[gone, None, many], written=["self", gone])
    assert [numbers(scale) for scale in found_in(builder)] == [(None, None, None)]


def test_statistics_without_the_least_number_say_nothing(builder: Builder) -> None:
    builder.records[0].config["statistics"] = ["mean"]
    op = builder.op("aten", "aten::_amp_update_scale_", "Aten", "_amp_update_scale_", UPDATE)
    scale = builder.value(torch.tensor(2.0), store=None)
    builder.emit(r.Statistics(r.STATISTICS, scale, [2.0]))
    builder.call(op, args=[value(scale), None, None], written=["self", value(scale)])
    assert [numbers(scale) for scale in found_in(builder)] == [(None, None, None)]


def test_no_scaler(builder: Builder) -> None:
    other = builder.op("aten", "mine::_amp_update_scale_", "Custom", "x")
    builder.call(other)
    assert found_in(builder) == []
