"""What to record: one frozen dataclass, checked when it is made.

Every error names the field, the value that was found and what is allowed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from .config_files import VARIABLES, read_config_file
from .errors import ConfigError
from .patterns import op_test
from .whole_files import STORED_SCHEMES, url_scheme

Level = Literal["aten", "api", "module", "mix"]
DataKind = Literal["structure", "hash", "statistic", "tensor", "full"]
IO = Literal["all", "input", "output"]
HashName = Literal["xxh3", "md5", "crc32", "sha256"]
OnError = Literal["raise", "warn"]
Dedup = Literal["version", "content", "sample"]
Compile = Literal["eager", "opaque", "kernels"]
Durability = Literal["async", "step", "fsync"]
SavedTensors = Literal["nodes", "hooks"]
PrivateFormats = Literal["logical", "both"]
Numbers = str | int | Iterable[int]
Trigger = Literal["nonfinite", "loss_spike"] | Callable[[str, list[dict[str, Any]]], bool] | None
_CHOICES: Final = (
    ("level", Level),
    ("data", DataKind),
    ("io", IO),
    ("hash", HashName),
    ("on_error", OnError),
    ("dedup", Dedup),
    ("compile", Compile),
    ("durability", Durability),
    ("saved_tensors", SavedTensors),
    ("private_formats", PrivateFormats),
)

STATISTICS: Final = (
    "count",
    "min",
    "max",
    "mean",
    "l2norm",
    "std",
    "nan",
    "posinf",
    "neginf",
    "zero",
    "negative",
    "positive",
)
SIGNS: Final = frozenset(("zero", "negative", "positive"))  # of these: what counts signs
NET_NAME: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,200}")  # what may name a folder
CONFIG_VARIABLE: Final = VARIABLES[0]
_NUMBER: Final = r"\s*[0-9]{1,18}\s*"
_RANGES: Final = re.compile(rf"{_NUMBER}(-{_NUMBER})?(\|{_NUMBER}(-{_NUMBER})?)*")
_MOST: Final = 10**18 - 1  # an index holds no number of more than 64 bits
_MOST_SHOWN: Final = 200  # characters of what was found


@dataclass(frozen=True, slots=True)
class Selection:
    """A set of numbers from the grammar ``"all" | "0|5-8|100-120"``, or from ints."""

    ranges: tuple[tuple[int, int], ...] | None  # None is all of them

    def __contains__(self, number: int) -> bool:
        return self.ranges is None or any(low <= number <= high for low, high in self.ranges)

    @classmethod
    def parse(cls, name: str, value: object, owner: str = "DumpConfig.") -> Selection:
        """Read a selection; `name` is the field that an error names, of `owner`."""
        value = _listed(value)
        if isinstance(value, str):
            return cls._parse_text(name, value, owner)
        numbers = value if isinstance(value, tuple) else (value,)
        if numbers and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _MOST for n in numbers):
            return cls(tuple((n, n) for n in sorted(set(numbers))))
        raise _bad(name, value, _NUMBERS, owner)

    @classmethod
    def _parse_text(cls, name: str, text: str, owner: str) -> Selection:
        if text.strip() == "all":
            return cls(None)
        if text.strip() == "none" and name == "steps":
            return cls(())  # until `aten-dump ctl` asks for some
        if not _RANGES.fullmatch(text):
            raise _bad(name, text, _NUMBERS, owner)
        ranges = []
        for part in text.split("|"):
            low, _, high = part.partition("-")
            ranges.append((int(low), int(high or low)))
            if ranges[-1][0] > ranges[-1][1]:
                raise _bad(name, text, f"ranges that go up; {part.strip()!r} goes down", owner)
        return cls(tuple(sorted(ranges)))


_NUMBERS: Final = (
    '"all", numbers and ranges such as "0|5-8|100-120", an int of 0 or more, or a non-empty list of them; '
    "numbers have 18 digits at most"
)


def _bad(name: str, found: object, allowed: str, owner: str = "DumpConfig.") -> ConfigError:
    shown = repr(list(found)) if isinstance(found, tuple) else repr(found)
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[:_MOST_SHOWN]}... ({len(shown)} characters)"
    return ConfigError(f"{owner}{name} is {shown}; allowed: {allowed}")


def _listed(value: object) -> object:
    """Return a tuple of what can be iterated over, once; text, numbers and all else as they are."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    try:
        return tuple(value)
    except TypeError:  # a tensor or an array of one number
        return value


@dataclass(frozen=True)
class DumpConfig:
    """What a DumpMode records and where it writes it.

    Args:
        path: directory of the dump, made if missing; or a URL of object storage, ``s3://bucket/run`` (``gs://``,
            ``az://``), which needs the extra ``remote``: see docs/guide/object-storage.md. When a launcher restarts a
            program (torchrun), the next attempt writes to ``restart1``, ... inside it; ``{restart}`` in the path says
            where else.
        steps: steps to record, counted from 0 by ``dump.step()``: ``"all"``, ``"0|5-8"``, an int or ints; ``"none"``
            before `aten-dump ctl` asks for some.
        ranks: ranks that record, in the same grammar.
        level: which kinds of call: ``"aten"`` (aten ops and autograd nodes), ``"api"``, ``"module"``, ``"mix"`` (all).
        data: what is kept of a tensor: ``"structure"`` (dtype, shape, stride, device), ``"hash"``,
            ``"statistic"``, ``"tensor"`` (its bytes), ``"full"`` (bytes, statistics and hash).
        statistics: which statistics, of `STATISTICS`.
        io: whose data is kept: of ``"input"`` values, ``"output"`` values or ``"all"``. Structure is always kept.
        ops: record only calls whose op or API matches one of these: a full name (``"aten::addmm"``,
            ``"Functional.linear"``), a part of a name in any case, or ``"regex:..."``, as in `Calls.filter`. Modules
            are then left out unless `modules` is given. Empty means all.
        exclude_ops: leave out calls that match one of these.
        modules: record only calls inside modules whose path matches one of these globs.
        stacks: record the source stack of calls.
        argv: keep the program's command line in ``run.json``, and the variables of the environment that matter; values
            of what is named as a secret are left out.
        hash: algorithm of ``data="hash"`` and ``"full"``: ``"xxh3"`` (64 bit), ``"md5"``, ``"crc32"``, ``"sha256"``.
        sample: keep only the first so many elements of a tensor's bytes; None keeps all.
        trigger: None writes every selected step. Otherwise calls are held in memory, and written only around the first
            call of a step at which something happens: ``"nonfinite"``, NaN or Inf appear that are no masks, made by a
            call or come from outside, or the overflow register of an NPU that saturates is set; ``"loss_spike"``, the
            loss that backward is called on is not finite, or six standard deviations above the last 32 (needs level
            ``"mix"`` or ``"api"``); or a function of (op, statistics of its results as a list of dicts) that returns
            True (needs data ``"statistic"`` or ``"full"``). When it
            happens on one rank, all ranks write the same calls.
        against: a dump of the same program with hashes. The hashes of each call are compared with it as the program
            runs; hashes of all calls are written, and bytes only around the first difference, within `trigger_before`,
            `trigger_after` and `trigger_bytes`. What decides which calls there are (level, ops, ...) is taken from that
            dump. Each rank is compared with the same rank there. Not beside a trigger.
        trigger_before: how many calls to write from before the trigger, also of the step before.
        trigger_after: how many calls to write after it, also of the next step.
        trigger_bytes: most bytes of tensors to hold while waiting for the trigger; the ones used last are kept.
        trigger_times: in how many steps the same cause (op, phase and module) may make ``"nonfinite"`` or an infinite
            loss write; None is no limit.
        queue_bytes: host memory for bytes on their way to the file; the program waits when it is full.
        shard_bytes: size at which a new shard file is begun.
        max_bytes: stop storing tensor bytes after so many (the index goes on); None is no limit.
        on_error: when the recorder itself fails: ``"raise"``, or ``"warn"`` once and let the program run on unrecorded.
        overwrite: replace an existing dump at `path`.
        dedup: how a tensor is known to be unchanged: ``"version"``, no op has written to its memory; ``"content"``,
            also its bytes are the same, which finds writes without an op (numpy, hand-launched kernels) at the
            cost of hashing every tensor whenever it is seen; ``"sample"``, the same by some words of each tensor in
            host memory, which finds what writes all of a tensor at a small cost.
        compile: what becomes of functions that torch.compile has wrapped: ``"eager"`` runs them as written, so that
            their ops are recorded; ``"opaque"`` runs them compiled, and records the inputs, outputs and extern kernels
            of each call; ``"kernels"`` runs them compiled, and records each kernel that inductor generated as a call
            with the graph that it computes. A note and one warning say so where a compiled call is not seen whole.
        durability: what is true of a step when ``dump.step()`` returns: ``"async"``, it is being written; ``"step"``,
            it is on file, and stays there if the process is killed; ``"fsync"``, it is on the disk, and stays there
            if the machine loses its power. The program waits for that.
        saved_tensors: how it is known what is saved for backward: ``"nodes"``, from what autograd's nodes hold;
            ``"hooks"``, also by saved-tensor hooks, which see autograd functions in C++, and when each tensor is saved
            and fetched.
        private_formats: what is stored of tensors in formats of a device's own (FRACTAL_NZ), with data ``"tensor"`` or
            ``"full"``: ``"logical"``, their elements; ``"both"``, also the memory of the device as it lies.
        net_name: name of the network, which `aten-dump export --to npy` names a folder by, as MindSpore does; letters,
            digits, ``.``, ``-`` and ``_``.
        spool: local folder for what is not uploaded yet, where `path` is a URL; by default below that for temporary
            files.
        spool_bytes: how many bytes may lie there; beyond it the program waits as for a slow disk, and if uploads fail
            all the while, that is an error as on a full disk.

    Raises:
        ConfigError: naming the field, the value and what is allowed.

    Example:
        >>> config = DumpConfig(path="dump", steps="0|5-8", level="aten", data="full", modules=("layers.0",))
    """

    path: str | os.PathLike[str]
    steps: Numbers = "all"
    ranks: Numbers = "all"
    level: Level = "mix"
    data: DataKind = "statistic"
    statistics: tuple[str, ...] = STATISTICS
    io: IO = "all"
    ops: tuple[str, ...] = ()
    exclude_ops: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    stacks: bool = True
    argv: bool = True
    hash: HashName = "xxh3"
    sample: int | None = None
    trigger: Trigger = None
    against: str | os.PathLike[str] | None = None
    trigger_before: int = 1000
    trigger_after: int = 200
    trigger_bytes: int = 256 << 20
    trigger_times: int | None = 3
    queue_bytes: int = 512 << 20
    shard_bytes: int = 4 << 30
    max_bytes: int | None = None
    on_error: OnError = "raise"
    overwrite: bool = False
    dedup: Dedup = "version"
    compile: Compile = "eager"
    durability: Durability = "async"
    saved_tensors: SavedTensors = "nodes"
    private_formats: PrivateFormats = "logical"
    net_name: str | None = None
    spool: str | os.PathLike[str] | None = None
    spool_bytes: int = 8 << 30
    step_selection: Selection = field(init=False, repr=False, compare=False)
    rank_selection: Selection = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        path = os.fspath(self.path) if isinstance(self.path, (str, os.PathLike)) else None
        if not isinstance(path, str) or not path or "\0" in path:
            raise _bad("path", self.path, "a directory's path")
        if url_scheme(path) not in (None, *STORED_SCHEMES):
            raise _bad("path", self.path, f"a local directory's path, or a URL of {', '.join(STORED_SCHEMES)}")
        for name, selection in (("steps", "step_selection"), ("ranks", "rank_selection")):
            self._put(name, _listed(getattr(self, name)))
            self._put(selection, Selection.parse(name, getattr(self, name)))
        for name, kind in _CHOICES:
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in get_args(kind):
                raise _bad(name, getattr(self, name), ", ".join(repr(a) for a in get_args(kind)))
        for name in ("statistics", "ops", "exclude_ops", "modules"):
            self._put(name, self._names(name))
        self._check_values()

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen once it is made

    def _names(self, name: str) -> tuple[str, ...]:
        value = _listed(getattr(self, name))
        names = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(n, str) and n for n in names):
            raise _bad(name, value, "a string or a list of non-empty strings")
        for n in names:
            if name in ("ops", "exclude_ops"):
                op_test(n, f"DumpConfig.{name}={n!r:.{_MOST_SHOWN}}")
        return names

    def _check_values(self) -> None:
        unknown = [n for n in self.statistics if n not in STATISTICS]
        if unknown or not self.statistics:
            raise _bad("statistics", list(self.statistics), "one or more of " + ", ".join(STATISTICS))
        for name in ("stacks", "argv", "overwrite"):
            if not isinstance(getattr(self, name), bool):
                raise _bad(name, getattr(self, name), "True or False")
        for name, least, optional in (
            ("sample", 1, True),
            ("max_bytes", 0, True),
            ("queue_bytes", 1 << 20, False),
            ("shard_bytes", 1 << 16, False),
            ("trigger_before", 0, False),
            ("trigger_after", 0, False),
            ("trigger_bytes", 0, False),
            ("trigger_times", 1, True),
            ("spool_bytes", 1 << 20, False),
        ):
            value = getattr(self, name)
            if optional and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
                allowed = f"an int of {least} or more, of 18 digits at most"
                raise _bad(name, value, allowed + (", or None" if optional else ""))
        if self.net_name is not None and not (isinstance(self.net_name, str) and NET_NAME.fullmatch(self.net_name)):
            raise _bad("net_name", self.net_name, "letters, digits, '.', '-' and '_', none of '.' alone; or None")
        if self.spool is not None and (not isinstance(self.spool, (str, os.PathLike)) or not os.fspath(self.spool)):
            raise _bad("spool", self.spool, "a local directory's path, or None")
        self._check_trigger()

    def _check_trigger(self) -> None:
        if self.against is not None and not isinstance(self.against, (str, os.PathLike)):
            raise _bad("against", self.against, "the path of a dump, or None")
        if self.trigger is None:
            return
        if self.against is not None:
            raise _bad("against", self.against, f"None beside a trigger; trigger is {self.trigger!r}")
        is_known = isinstance(self.trigger, str) and self.trigger in ("nonfinite", "loss_spike")
        if not callable(self.trigger) and not is_known:
            raise _bad("trigger", self.trigger, 'None, "nonfinite", "loss_spike", or a function of (op, statistics)')
        if callable(self.trigger) and not self.wants_statistics:
            raise _bad("trigger", self.trigger, 'data "statistic" or "full" for a function of statistics')
        if self.trigger == "loss_spike" and self.level not in ("mix", "api"):
            raise _bad("trigger", self.trigger, f'level "mix" or "api", which see backward; level is {self.level!r}')

    @property
    def wants_tensor(self) -> bool:
        return self.data in ("tensor", "full") or self.against is not None

    @property
    def holds_back(self) -> bool:
        """True if calls are held in memory before they are written."""
        return self.trigger is not None or self.against is not None

    @property
    def wants_private_memory(self) -> bool:
        return self.wants_tensor and self.private_formats == "both"

    @property
    def wants_statistics(self) -> bool:
        return self.data in ("statistic", "full")

    @property
    def wants_hash(self) -> bool:
        return self.data in ("hash", "full")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, as the index header and run.json hold them."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        fields["path"] = os.fspath(self.path)
        if self.against is not None:
            fields["against"] = os.fspath(self.against)
        fields["spool"] = None if self.spool is None else os.fspath(self.spool)
        if callable(self.trigger):
            fields["trigger"] = getattr(self.trigger, "__qualname__", repr(self.trigger))
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], source: str = "the mapping") -> DumpConfig:
        """Make a config from plain values; `source` is named in errors."""
        allowed = [f.name for f in dataclasses.fields(cls) if f.init]
        unknown = sorted(set(fields) - set(allowed))
        if unknown:
            raise ConfigError(f"{source} has unknown fields {', '.join(unknown)}; allowed: {', '.join(allowed)}")
        if "path" not in fields:
            raise ConfigError(f"{source} has no field 'path'; it is the directory to write the dump to")
        try:
            return cls(**fields)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> DumpConfig:
        """Read a config from a JSON, TOML or YAML file, by its suffix; also msprobe's and MindSpore's.

        A warning names the keys of another tool that have no meaning here.

        Raises:
            ConfigError: the file is missing, is not valid, or holds a field or value that is not allowed.
        """
        found = read_config_file(path)
        if found.without_meaning:
            keys = "; ".join(f"{key}: {why}" for key, why in found.without_meaning.items())
            warnings.warn(f"{found.source} has keys without meaning here: {keys}", stacklevel=2)
        return cls.from_dict(found.fields, found.source)

    @classmethod
    def from_environment(cls) -> DumpConfig:
        """Read the config file that ATEN_DUMP_CONFIG names, or MINDSPORE_DUMP_CONFIG."""
        path = next((path for name in VARIABLES if (path := os.environ.get(name))), None)
        if path is None:
            raise ConfigError(
                f"DumpMode got no config and {CONFIG_VARIABLE} is not set; pass a DumpConfig or set it to a file"
            )
        return cls.from_file(path)
