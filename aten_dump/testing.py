"""The pytest plugin: the fixture `golden` records a step once, and compares each later run of the test with it.

>>> def test_step(golden):
...     torch.manual_seed(0)
...     model = Net()
...     with golden("step", model=model):
...         model(batch).sum().backward()

A golden is a dump of statistics in ``goldens/<test file>/<name>`` beside the test file, without source lines and
command, so that it says nothing of the machine. ``values.txt`` in it has the main values, for reviewers of a change.

In: pytest's requests. Out: a failed test with the first cause. Neither torch nor a dump is imported before it is used.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from .errors import ConfigError

if TYPE_CHECKING:
    from .capture.mode import DumpMode
    from .dump import RankDump, Value

_FOLDER: Final = "goldens"
_VALUES: Final = "values.txt"
_RECORDED_BY: Final = "recorded by "
_WRITTEN: Final = "golden written"
_NAME: Final = re.compile(r"[\w][\w.\-]*")
_OFF: Final = ("", "0", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --golden-update."""
    group = parser.getgroup("aten_dump")
    group.addoption("--golden-update", action="store_true", help="record the goldens of aten_dump's fixture anew")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the goldens that were written: they are to be looked at, and committed."""
    reports = [one for some in terminalreporter.stats.values() for one in some]
    written = [text for one in reports for name, text in getattr(one, "user_properties", ()) if name == _WRITTEN]
    for path in dict.fromkeys(written):
        terminalreporter.write_line(f"golden written: {path}")


class Golden:
    """What the fixture `golden` is: called with a name, it records a block and compares it with the golden."""

    def __init__(self, request: pytest.FixtureRequest, scratch: Path) -> None:
        self._node = request.node
        self._updates = bool(request.config.getoption("--golden-update"))
        self._scratch = scratch
        test = Path(request.path)
        self._folder = test.parent / _FOLDER / test.stem
        self._names: set[str] = set()

    def __call__(
        self, name: str, *, model: Any = None, data: str = "statistic", **config: Any
    ) -> AbstractContextManager[DumpMode]:
        """Record what runs in the block; at its end write the golden, or compare with it.

        Args:
            name: of the golden, once for each test file: letters, digits, ``.``, ``_`` and ``-``.
            model: as of `DumpMode`.
            data: ``"statistic"`` passes on machines with other honest kernels; ``"hash"`` pins every bit.
            config: further fields of `DumpConfig`.

        Returns:
            A context manager; its value is the `DumpMode`, whose ``step()`` ends a step of several.

        Raises:
            ConfigError: the name is none, or was used before in this test; a field of the configuration is wrong.
            Failed: pytest's, with the first cause, if what was recorded is not what the golden says; or if there is no
                golden and the variable CI is set.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in self._names:
            why = (
                "used in this test already" if name in self._names else "letters, digits, '.', '_' and '-' are allowed"
            )
            raise ConfigError(f"golden({name!r:.100}): the name must be new and a file name: {why}")
        self._names.add(name)
        return self._recording(name, model, {"data": data, **config})

    @contextmanager
    def _recording(self, name: str, model: Any, config: dict[str, Any]) -> Iterator[DumpMode]:
        from .capture.mode import DumpMode
        from .config import DumpConfig

        golden = self._folder / name
        is_new = self._updates or not golden.is_dir()
        if is_new and not self._updates and os.environ.get("CI", "").lower() not in _OFF:
            pytest.fail(f"there is no golden {golden}: {self._how_to_update()}, and commit it", pytrace=False)
        recorded = golden.with_name(f".{name}.new") if is_new else self._scratch / f"golden-{name}"
        # A golden names no folder of this machine: its path is relative, and source lines are left out.
        path = os.path.relpath(recorded) if is_new else str(recorded)
        options = {"path": path, "argv": False, "stacks": not is_new, "overwrite": is_new, **config}
        try:
            with DumpMode(DumpConfig(**options), model=model) as dump:
                yield dump
            if is_new:
                self._write(recorded, golden)
            else:
                self._compare(recorded, golden)
        finally:
            if is_new:
                shutil.rmtree(recorded, ignore_errors=True)

    def _write(self, recorded: Path, golden: Path) -> None:
        from .dump import open_dump

        ranks = open_dump(recorded).all_ranks()
        if not any(len(rank.calls) for rank in ranks):
            pytest.fail(f"golden {golden}: nothing was recorded in its block", pytrace=False)
        lines = [f"{_RECORDED_BY}{self._node.nodeid}", *(line for rank in ranks for line in _lines(rank))]
        (recorded / _VALUES).write_text("\n".join(lines) + "\n", encoding="utf-8")
        shutil.rmtree(golden, ignore_errors=True)
        recorded.rename(golden)
        self._node.user_properties.append((_WRITTEN, str(golden)))

    def _compare(self, recorded: Path, golden: Path) -> None:
        from .analysis.compare import compare
        from .errors import AtenDumpError

        try:
            found = compare(recorded, golden)
        except AtenDumpError as error:
            text = f"golden {golden} cannot be compared with: {error}; {self._how_to_update()}"
            raise pytest.fail.Exception(text, pytrace=False) from None
        if found.exit_code:
            hint = f"{self._of_another_test(golden)}If the change is meant: {self._how_to_update()}, and commit it."
            pytest.fail(f"golden {golden}\n{found.answer()}\n{hint}", pytrace=False)

    def _of_another_test(self, golden: Path) -> str:
        """Return that another test recorded a golden, as that of other parameters; "" for this one's own."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            first = (golden / _VALUES).read_text(encoding="utf-8").partition("\n")[0]
            if first.startswith(_RECORDED_BY) and first != f"{_RECORDED_BY}{self._node.nodeid}":
                return f"It was {first}; two tests cannot share a golden: give each a name of its own.\n"
        return ""

    def _how_to_update(self) -> str:
        return f"run `pytest --golden-update {shlex.quote(self._node.nodeid)}`"


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    """Record a step once, and compare each later run with it; see `Golden.__call__`."""
    return Golden(request, tmp_path)


def _lines(rank: RankDump) -> Iterator[str]:
    """Yield the main values of a step: what modules returned, and gradients of parameters."""
    yield f"step {rank.step}, rank {rank.rank}"
    for call in rank.calls.filter(kind="module", phase="forward"):
        yield from (f"  {call.name}.{slot}  {_text(value)}" for slot, value in call.output_values())
    for name, gradient in sorted(rank.gradients.items()):
        yield f"  gradient of {name}  {_text(gradient)}"


def _text(value: Value) -> str:
    stats = value.stats
    named = [] if stats is None else [(name, stats.get(name)) for name in ("mean", "std", "min", "max")]
    numbers = ", ".join(f"{name} {number:.4g}" for name, number in named if isinstance(number, (int, float)))
    return f"{value.dtype_name}{list(value.shape)}  {numbers or value.hash or ''}".rstrip()
