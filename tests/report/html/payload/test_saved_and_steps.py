"""Memory kept for backward, and numbers over steps: the sums and digits of the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_dump import open_dump
from aten_dump.dump import Dump
from aten_dump.report.html.payload.sections import Subject, report_sections
from aten_dump.report.units import format_number
from tests.browser import dumps
from tests.report.sections_read import Read
from tests.torch_features import needs_saved_tensors


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    return open_dump(dumps.trained(tmp_path_factory.mktemp("trained")))


@pytest.fixture(scope="module")
def sections(trained: Dump) -> dict[str, Read]:
    return {name: Read(data) for name, data in report_sections(Subject(trained, "0"))}


@needs_saved_tensors
def test_every_storage_that_is_kept_counts_once(trained: Dump, sections: dict[str, Read]) -> None:
    saved = sections["target/1/0/saved"]
    kept = trained.rank(1, 0).saved_for_backward()
    nbytes, outside = saved.columns["nbytes"], saved.columns["outside"]
    assert sum(nbytes) == kept.nbytes
    assert sum(size for size, is_outside in zip(nbytes, outside, strict=True) if is_outside) == kept.outside_nbytes > 0
    assert 0 < kept.outside_nbytes < kept.nbytes


@needs_saved_tensors
def test_a_storage_is_kept_from_its_first_keeper_to_the_end_of_its_backward(
    trained: Dump, sections: dict[str, Read]
) -> None:
    rank = trained.rank(1, 0)
    calls = list(rank.calls)
    saved = sections["target/1/0/saved"]
    for keeper, until, node in zip(*(saved.columns[name] for name in ("keeper", "until", "node")), strict=True):
        call = calls[keeper]
        assert call.phase == "forward"
        assert saved.json["nodes"][node] in {one.node for one in rank.saved_for_backward() if one.call == call}
        assert calls[until].phase == "backward"
        assert until >= max(calls.index(one) for one in call.backward)


def test_numbers_over_steps_are_those_of_the_dump(trained: Dump, sections: dict[str, Read]) -> None:
    steps = sections["steps"]
    assert steps.json["steps"] == [0, 1, 2]
    assert steps.json["ranks"] == [0]
    names = [name for name, _ in steps.json["series"]]
    norms = steps.numbers("l2norm")
    for step in trained.steps:
        rank = trained.rank(step, 0)
        for parameter, value in rank.gradients.items():
            shown = norms[names.index(parameter) * 3 + step]
            assert value.stats is not None
            assert format_number(shown) == format_number(float(value.stats["l2norm"]))  # type: ignore[arg-type]
        name = "Module.head.0.forward.output.0"
        assert format_number(norms[names.index(name) * 3 + step]) == format_number(float(rank.value(name).stats.l2norm))  # type: ignore[union-attr,arg-type]
    losses = [steps.numbers("mean")[names.index("loss") * 3 + step] for step in range(3)]
    assert losses == sorted(losses, reverse=True)  # type: ignore[type-var]


def test_without_statistics_there_is_nothing_over_steps(tmp_path: Path) -> None:
    dump = open_dump(dumps.structure(tmp_path))
    assert "steps" not in dict(report_sections(Subject(dump, "0")))


def test_loss_scales_and_counts_of_nan_are_in_the_outline(tmp_path: Path) -> None:
    outline = Read(dict(report_sections(Subject(open_dump(dumps.scaled_loss(tmp_path)), "0")))["outline"]).json
    first, second = outline["sides"]["target"]["step_ranks"]
    assert first["loss_scales"][0]["found_inf"] is True
    assert second["loss_scales"][0]["scale"] == first["loss_scales"][0]["next_scale"] < first["loss_scales"][0]["scale"]
    assert first["nonfinite_values"] > 0
