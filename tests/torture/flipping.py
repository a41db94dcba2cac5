"""Dumps whose index is spoilt or cut, and what every command that answers says of them: never that all is well."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from click.testing import CliRunner

from aten_dump import DumpConfig, DumpMode
from aten_dump.cli.main import main
from aten_dump.store.recovery import recover
from tests.torture.changing import records_of, signed

COMMANDS = ("compare", "nonfinite", "replay", "stats", "report", "export")
PASSING = ("agree", "are the same", "no NaN", "no call of", "no op of")  # never said of what is not whole
_OPENED = ("damaged", "interrupted", "is not an index", "damaged Header")  # one is in the first line


def record_pair(folder: Path) -> tuple[Path, Path]:
    """Record a target and a baseline: the target has another eps and makes NaN, so that no command may pass it."""
    return _record(folder / "target", eps=1e-2, nan=True), _record(folder / "baseline", eps=1e-5, nan=False)


def _record(path: Path, eps: float, nan: bool) -> Path:
    if not path.exists():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8, eps=eps), torch.nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with DumpMode(DumpConfig(path, data="full"), model=model) as dump:
            loss = model(torch.randn(4, 8)).pow(2).mean()
            loss.backward()
            optimizer.step()
            if nan:
                (loss.detach() - loss.detach() - 1).log()
            dump.step()
        index = index_of(path)
        index.write_bytes(signed(records_of(index), 12))  # a check every few records, as a large index has
    return path


def index_of(dump: Path) -> Path:
    """Return the index of a dump of one step and rank."""
    return next(dump.glob("step*/rank*/index.msgpack"))


def flipped(dump: Path, random: random.Random) -> str:
    """Flip one bit of the index."""
    data = bytearray(index_of(dump).read_bytes())
    at, bit = random.randrange(len(data)), random.randrange(8)
    data[at] ^= 1 << bit
    index_of(dump).write_bytes(data)
    return f"bit {bit} of byte {at}"


def cut(dump: Path, random: random.Random) -> str:
    """Cut the index, as `kill -9` does."""
    data = index_of(dump).read_bytes()
    nbytes = random.randrange(len(data))
    index_of(dump).write_bytes(data[:nbytes])
    return f"cut at byte {nbytes}"


def recovered(dump: Path, random: random.Random) -> str:
    """Cut the index after its header, and recover it."""
    data = index_of(dump).read_bytes()
    nbytes = random.randrange(len(data) // 2, len(data))
    index_of(dump).write_bytes(data[:nbytes])
    recover(index_of(dump).parent)
    return f"cut at byte {nbytes} and recovered"


SPOILS: dict[str, Callable[[Path, random.Random], str]] = {"flipped": flipped, "cut": cut, "recovered": recovered}


def ask(command: str, dump: Path, baseline: Path) -> None:
    """Ask a command about a spoilt dump, and see that it says so first and does not pass it."""
    words = {
        "compare": [dump, baseline],
        "report": [dump, "-o", dump.parent / "out.html"],
        "export": [dump, "--to", "graph", "--out", dump.parent / "out", "--overwrite"],
    }.get(command, [dump])
    result = CliRunner().invoke(main, [command, *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    first = result.output.partition("\n")[0]
    assert result.exit_code in (1, 2), f"{command} ended with {result.exit_code}: {first}"
    assert any(word in first for word in _OPENED), f"{command} did not say it first: {first}"
    assert not any(text in result.output for text in PASSING), f"{command} passed it: {result.output}"


def spoil_and_ask(folder: Path, chance: random.Random, commands: tuple[str, ...] = COMMANDS) -> str:
    """Spoil a copy of the target in some way and ask commands about it; return what was done."""
    target, baseline = record_pair(folder)
    spoilt = folder / "spoilt"
    shutil.rmtree(spoilt, ignore_errors=True)
    shutil.copytree(target, spoilt)
    said = SPOILS[chance.choice(("flipped", "flipped", "flipped", *SPOILS))](spoilt, chance)
    for command in commands:
        try:
            ask(command, spoilt, baseline)
        except AssertionError as error:
            raise AssertionError(f"{said}: {error}") from error
    return said
