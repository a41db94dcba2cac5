"""What a notebook shows of a comparison and of a replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aten_dump import compare, replay
from aten_dump.analysis.notebook_view import comparison_html, replay_html
from tests.browser import dumps
from tests.dump.shown.test_notebook import parsed


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("dumps")
    return dumps.scaled_bn(folder), dumps.baseline(folder)


def test_a_comparison_shows_its_answer_and_counts(paths: tuple[Path, Path]) -> None:
    found = compare(*paths)
    text = parsed(found._repr_html_()).text
    assert "The dumps differ." in text and found.cause is not None and found.cause.row.place.call in text
    assert f"{found.ranks[0].proven} of {found.ranks[0].judged}" in text
    assert f"{found.ranks[0].count('different'):,}" in text


def test_nothing_of_a_comparison_becomes_markup() -> None:
    html = comparison_html("<script>", "<img src=x>\nnext", [])
    assert parsed(html).texts == ["<script>", "<img src=x>", "next"]


def test_a_replay_shows_the_worst_ops_first(paths: tuple[Path, Path]) -> None:
    found = replay(paths[0])
    assert found.guilty is not None
    text = parsed(found._repr_html_()).text
    assert found.guilty.name in text and f"{len(found.suspects)} have larger errors" in text
    assert text.index(found.ops[0].name) < text.index(found.ops[1].name)


def test_a_replay_of_nothing(paths: tuple[Path, Path]) -> None:
    assert "0 ops replayed" in parsed(replace(replay(paths[1]), ops=())._repr_html_()).text
    assert parsed(replay_html("<b>", "<i>", [])).texts == ["<b>", "<i>"]
