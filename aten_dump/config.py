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

    Steps, ranks and elements are counted from 0, sizes are in bytes.

    Args:
        path: directory of the dump, created if missing; or a URL of object storage, ``s3://bucket/run`` (``gs://``,
            ``az://``), which needs the extra ``remote`` (docs/guide/object-storage.md). If a launcher restarts the
            program (torchrun), the next attempt writes to ``restart1``, ... inside it. ``{restart}`` in the path sets
            another place.
        steps: steps to record, as ``dump.step()`` counts them: ``"all"``, ``"0|5-8"``, an int or ints; ``"none"`` until
            `aten-dump ctl` asks for some.
        ranks: ranks that record, in the same grammar.
        level: kinds of call to record: ``"aten"`` (aten ops and autograd nodes), ``"api"``, ``"module"``, ``"mix"``
            (all).
        data: data to keep of each tensor: ``"structure"`` (dtype, shape, stride, device), ``"hash"``,
            ``"statistic"``, ``"tensor"`` (its bytes), ``"full"`` (bytes, statistics and hash).
        statistics: names of `STATISTICS`, for data ``"statistic"`` and ``"full"``.
        io: keep data of ``"input"`` values, ``"output"`` values or ``"all"``. Structure is always kept.
        ops: record only calls whose op or API matches one of these: a full name (``"aten::addmm"``,
            ``"Functional.linear"``), a part of a name in any case, or ``"regex:..."``, as in `Calls.filter`. Modules
            are then left out unless `modules` is given. Empty: all.
        exclude_ops: leave out calls that match one of these.
        modules: record only calls inside modules whose path matches one of these globs. Empty: all.
        stacks: record the source stack of calls.
        argv: keep the command line and the relevant variables of the environment in ``run.json``, without secrets.
        hash: algorithm of ``data="hash"`` and ``"full"``: ``"xxh3"`` (64 bit), ``"md5"``, ``"crc32"``, ``"sha256"``.
        sample: keep only this many first elements of each tensor; None keeps all.
        trigger: None writes every selected step. Otherwise calls are held in memory, and only those around the first
            call of a step that fulfils the condition are written, on all ranks. ``"nonfinite"``: NaN or Inf appear
            that are no masks, or the overflow register of a saturating NPU is set. ``"loss_spike"``: the loss is
            not finite, or six standard deviations above the last 32 (needs level ``"mix"`` or ``"api"``). A function
            of (op, statistics of its results as a list of dicts) that returns True (needs data ``"statistic"`` or
            ``"full"``).
        against: a dump of the same program with hashes. Each call is compared with it while the program runs. Hashes
            of all calls are written, and bytes only around the first difference, within `trigger_before`,
            `trigger_after` and `trigger_bytes`. The selection of calls (level, ops, ...) is that of the dump. Each
            rank is compared with the same rank there. Excludes `trigger`.
        trigger_before: number of calls to write from before the trigger, also from the step before.
        trigger_after: number of calls to write after it, also from the next step.
        trigger_bytes: maximum bytes of tensors to hold while waiting for the trigger; the latest are kept.
        trigger_times: number of steps in which the same cause (op, phase and module) may write for ``"nonfinite"`` or
            an infinite loss; None: no limit.
        queue_bytes: host memory for bytes on their way to the file; the program waits when it is full.
        shard_bytes: size at which a new shard file begins.
        max_bytes: store no more tensor bytes after this many (the index goes on); None: no limit.
        on_error: when the recorder itself fails: ``"raise"``, or ``"warn"`` once and let the program run on unrecorded.
        overwrite: replace an existing dump at `path`.
        dedup: when a tensor counts as unchanged. ``"version"``: no op has written to its memory. ``"content"``: its
            bytes are the same too, which finds writes without an op (numpy, hand-launched kernels) but hashes every
            tensor whenever it is seen. ``"sample"``: some words of each tensor in host memory are the same, which is
            cheap and finds writes to a whole tensor.
        compile: how functions of torch.compile run. ``"eager"``: as written, so that their ops are recorded.
            ``"opaque"``: compiled; inputs, outputs and extern kernels of each call are recorded. ``"kernels"``:
            compiled; each kernel that inductor generated is a call with the graph that it computes. A note and one
            warning name compiled calls that are not seen whole.
        durability: state of a step when ``dump.step()`` returns. ``"async"``: being written. ``"step"``: on file, and
            safe if the process is killed. ``"fsync"``: on the disk, and safe if the machine loses its power. The
            program waits for that.
        saved_tensors: how to find what is saved for backward: ``"nodes"``, from autograd's nodes; ``"hooks"``, also by
            saved-tensor hooks, which see autograd functions in C++, and when each tensor is saved and fetched.
        private_formats: what to store of tensors in a device's own format (FRACTAL_NZ), with data ``"tensor"`` or
            ``"full"``: ``"logical"``, their elements; ``"both"``, also the memory of the device.
        net_name: name of the network for `aten-dump export --to npy`, as in MindSpore's layout; letters, digits,
            ``.``, ``-`` and ``_``.
        spool: local folder for files that wait for their upload, if `path` is a URL; by default below the folder for
            temporary files.
        spool_bytes: maximum bytes in it. Beyond that the program waits as for a slow disk; if uploads keep failing,
            that is an error as on a full disk.

    Raises:
        ConfigError: naming the field, the value and the allowed values.

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
        """True if bytes of tensors are kept."""
        return self.data in ("tensor", "full") or self.against is not None

    @property
    def holds_back(self) -> bool:
        """True if calls are held in memory before they are written."""
        return self.trigger is not None or self.against is not None

    @property
    def wants_private_memory(self) -> bool:
        """True if the memory of tensors in a device's own format is kept."""
        return self.wants_tensor and self.private_formats == "both"

    @property
    def wants_statistics(self) -> bool:
        """True if statistics of tensors are kept."""
        return self.data in ("statistic", "full")

    @property
    def wants_hash(self) -> bool:
        """True if hashes of tensors are kept."""
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
