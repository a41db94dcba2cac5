"""Every table of the command line at three widths: what a terminal shows is what a pipe gets, or it says what it left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from aten_dump import DumpConfig, DumpMode
from tests.checkout import ROOT
from tests.cli.terminal import in_pipe, on_terminal

NO_ROOM = re.compile(r"no room at (\d+) columns for: (.*) \(")
# A command, and the first column of each of its tables.
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ls": (("ls", "A"), ("step",)),
    "stats": (("stats", "A", "--limit", "0"), ("call",)),
    "saved": (("saved", "A", "--limit", "0"), ("module", "call")),
    "saved --offload": (("saved", "A", "--offload"), ("module",)),
    "replay": (("replay", "A", "--limit", "0"), ("call",)),
    "nonfinite": (("nonfinite", "A", "--all", "--limit", "0"), ("call",)),
    "check --rules": (("check", "--rules"), ("rule",)),
    "compare": (("compare", "A", "B", "--format", "table", "--limit", "0"), ("status",)),
}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.normalization_before_attention = nn.LayerNorm(16)
        self.query_key_value_projection = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.query_key_value_projection(self.normalization_before_attention(x))
        attended = nn.functional.scaled_dot_product_attention(normed, normed, normed)
        return attended * (attended.relu() * 1e30).square().mean()


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dumps with long names, large counts, Inf and a collective."""
    folder = tmp_path_factory.mktemp("dumps")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for name, scale in (("A", 1.0), ("B", 1.5)):
        torch.manual_seed(0)
        model = nn.ModuleDict({"encoder_of_the_first_stage": Attention()})
        with DumpMode(DumpConfig(path=folder / name, data="full"), model=model):
            out = model["encoder_of_the_first_stage"](torch.randn(2, 2, 40, 16) * scale)
            out.sum().backward()
            dist.all_reduce(out.detach())
    dist.destroy_process_group()
    return folder


def tables(lines: list[str], first: tuple[str, ...]) -> Iterator[list[list[str]]]:
    """Yield the tables among lines, head and rows as cells, without the line under the head."""
    wanted = list(first)
    rows: list[list[str]] = []
    for line in [*lines, ""]:
        cells = re.split(" {2,}", line.strip())
        if wanted and not rows and cells[0] == wanted[0] and len(cells) > 1:
            rows = [cells]
        elif rows and len(cells) == len(rows[0]):
            rows.append(cells)
        elif rows and set(line) != {"─"}:
            yield rows
            rows, wanted = [], wanted[1:]


def left_out_of(lines: list[str], width: int) -> list[list[str]]:
    """Return the columns that each such line names."""
    found = [match for line in lines if (match := NO_ROOM.match(line))]
    assert all(int(match[1]) == width for match in found)
    return [match[2].split(", ") for match in found]


def agrees(shown: str, whole: str) -> bool:
    """Whether a cell of a terminal is that of the pipe, or a name cut in its middle with no number cut."""
    head, mark, tail = shown.partition("…")
    if not mark:
        return shown == whole
    missing = whole[len(head) : len(whole) - len(tail)]
    cuts_number = (re.search(r"\d$", head) and missing[:1].isdigit()) or (
        re.search(r"\d$", missing) and tail[:1].isdigit()
    )
    return whole.startswith(head) and whole.endswith(tail) and not cuts_number


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", TABLES)
def test_a_terminal_shows_the_numbers_of_the_pipe(name: str, width: int, dumps: Path, tmp_path: Path) -> None:
    command, first = TABLES[name]
    arguments = [dumps / one if one in ("A", "B") else one for one in command]
    lines = on_terminal(width, *arguments)
    full = list(tables(in_pipe(tmp_path / "out", *arguments), first))
    shown = list(tables(lines, first))
    assert len(shown) == len(full) == len(first)
    named = left_out_of(lines, width)
    for terminal, pipe in zip(shown, full, strict=True):
        gone = [title for title in pipe[0] if title not in terminal[0]]
        assert not gone or named.pop(0) == gone, "what had no room is named after the table"
        kept = [pipe[0].index(title) for title in terminal[0]]
        assert len(terminal) == len(pipe) > 1
        for row, whole in zip(terminal[1:], pipe[1:], strict=True):
            assert all(agrees(cell, whole[at]) for cell, at in zip(row, kept, strict=True)), (row, whole)
            assert sum(map(len, row)) + 2 * (len(row) - 1) <= width
    assert not named


def test_the_statistics_that_tell_most_stay_on_the_narrowest_terminal(dumps: Path) -> None:
    (shown,) = tables(on_terminal(60, "stats", dumps / "A", "--limit", "0"), ("call",))
    assert shown[0][:2] == ["call", "slot"] and shown[0][-1] == "nan"


def test_every_command_that_prints_a_table_is_here() -> None:
    printing = {
        file.stem
        for file in (ROOT / "aten_dump" / "cli").rglob("*.py")
        if "print_table(" in file.read_text(encoding="utf-8") and file.name != "console.py"
    }
    assert printing == {command[0] for command, _ in TABLES.values()}


def test_no_table_goes_by_another_way() -> None:
    """What rich or anything else lays out may cut digits without a mark."""
    others = [
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "aten_dump").rglob("*.py")
        if "rich.table" in file.read_text(encoding="utf-8")
    ]
    assert others == []
