"""Open what holds weights, and read its tensors one at a time.

Theory of operation
    A checkpoint may come from a stranger: nothing in it is run. Safetensors files have their own reader; state dicts of
    ``torch.save`` go through ``torch.load(weights_only=True)``, mapped into memory. Tensors are read when they are
    asked for, in parts along the first dimension where the file allows it. Files of a folder may be links, as download
    caches have them.

    A dump names parameters where they got gradients. Others are named after the module that reads them first:
    ``layers.0.attn.weight``. A weight comes from outside the step and requires a gradient, or is what a layer is always
    given as its weight. Of a call the tensor with the most dimensions is the weight, the next one the bias.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from ...dump import Call, Dump, RankDump, Step, Value
from ...dump.foreign.tensor_files import load_torch
from ...dump.wholeness import not_whole_lines
from ...errors import ConfigError, FormatError, MissingDataError, StoreError
from ...store.objects.url_path import UrlPath, place_of
from ..flow.data_flow import DataFlow
from ..flow.leaves import leaf_gradients, named_leaves
from ..given_dumps import opened

# Layers, and which of their arguments is data.
_LAYERS: Final = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "embedding", "layer_norm", "rms_norm", "group_norm"), 0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "batch_norm"), 0),
    "addmm": 1,
}
_STATISTICS: Final = {"input.1": "running_mean", "input.2": "running_var"}  # of batch_norm

Given: TypeAlias = "str | os.PathLike[str] | Dump | Step | RankDump | nn.Module | Mapping[str, torch.Tensor]"
_INDEX: Final = ".index.json"
_PICKLED: Final = (".pt", ".pth", ".bin", ".ckpt")
_WITHIN: Final = ("state_dict", "model_state_dict", "model", "module")  # where trainers keep the weights
_MOST_INDEX_BYTES: Final = 1 << 28
_DTYPES: Final = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip
Read: TypeAlias = Callable[[int, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint, which is read when it is asked for."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Read  # elements [start, stop) of the first dimension

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def module(self) -> str:
        """The part of the name before the last dot."""
        return self.name.rpartition(".")[0]

    def tensor(self) -> torch.Tensor:
        """Read all of it."""
        return self.read(0, self.shape[0] if self.shape else 1)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a checkpoint by name, and what to call it."""

    label: str
    tensors: dict[str, StoredTensor]
    not_whole: tuple[str, ...] = ()  # what a dump lacks, in sentences

    @property
    def nbytes(self) -> int:
        return sum(one.numel * one.dtype.itemsize for one in self.tensors.values())


def open_checkpoint(given: Given) -> Checkpoint:
    """Open a checkpoint.

    Args:
        given: a safetensors file or a folder of them, a state dict of ``torch.save``, a dump, a module, or tensors by
            name.

    Raises:
        FormatError: a file is damaged, or is none of these.
        MissingDataError: there is no such file, or a shard is missing.
        StoreError: a file cannot be read.
    """
    if isinstance(given, (str, os.PathLike)) and _is_dump(place_of(given)):
        given = opened(given)[0]
    match given:
        case nn.Module():
            return Checkpoint(type(given).__name__, _of_mapping(given.state_dict()))
        case Mapping():
            return Checkpoint("tensors by name", _of_mapping(given))
        case Dump() | Step() | RankDump():
            return _of_dump(*opened(given))
        case str() | os.PathLike():
            return Checkpoint(os.fspath(given), _of_path(Path(given)))
        case _:
            raise ConfigError(f"weights got a {type(given).__name__}; allowed: a path, a dump, a module, a state dict")


def _is_dump(path: Path) -> bool:
    if isinstance(path, UrlPath):
        return True  # no checkpoint is read from there: who opens it says what it is
    try:
        names = os.listdir(path)
    except OSError:  # who reads it says why
        return False
    return "run.json" in names or any(name.startswith("step") and (path / name).is_dir() for name in names)


def _of_path(path: Path) -> dict[str, StoredTensor]:
    try:
        if path.is_dir():
            return _of_folder(path)
        if not path.exists():
            raise MissingDataError(f"{path} does not exist")
        if not path.is_file():
            raise FormatError(f"{path} is not a regular file")
        if path.name.endswith(_INDEX):
            return _of_index(path)
        return dict(_in_file(path))
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror or error}") from error


def _of_folder(path: Path) -> dict[str, StoredTensor]:
    names = sorted(os.listdir(path))
    indexes = [name for name in names if name.endswith(_INDEX)]
    if len(indexes) > 1:
        raise FormatError(f"{path} has {len(indexes)} indexes: {', '.join(indexes)}; name the one to read")
    if indexes:
        return _of_index(path / indexes[0])
    files = [name for name in names if name.endswith(".safetensors")]
    files = files or [name for name in names if name.endswith(_PICKLED)]
    if not files:
        raise MissingDataError(f"{path} has no weights: no .safetensors or {', '.join(_PICKLED)} file, and no dump")
    return _joined({name: dict(_in_file(path / name)) for name in files})


def _joined(files: Mapping[str, Mapping[str, StoredTensor]]) -> dict[str, StoredTensor]:
    """Return the tensors of several files; a name that several files have is followed by the file."""
    counts = Counter(name for tensors in files.values() for name in tensors)
    found = {}
    for file, tensors in files.items():
        for name, one in tensors.items():
            shown = name if counts[name] == 1 else f"{name} ({file})"
            found[shown] = StoredTensor(shown, one.shape, one.dtype, one.read)
    return found


def _of_index(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors that the index of a sharded checkpoint names."""
    files = _files_of_index(path)
    gone = sorted(set(files.values()) - set(os.listdir(path.parent)))
    if gone:
        count = sum(file in gone for file in files.values())
        raise MissingDataError(f"{path} names {count} tensors in files that are not there: {', '.join(gone[:5])}")
    there = {file: dict(_in_file(path.parent / file)) for file in sorted(set(files.values()))}
    absent = [name for name, file in files.items() if name not in there[file]]
    if absent:
        raise FormatError(f"{path} says that {absent[0]} is in {files[absent[0]]}, which lacks it; {len(absent)} such")
    return _joined(there)


def _files_of_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor, as an index says."""
    if path.stat().st_size > _MOST_INDEX_BYTES:
        raise FormatError(f"{path} has {path.stat().st_size} bytes, which is no index of a checkpoint")
    try:
        files = json.loads(path.read_bytes())["weight_map"]
        if not all(Path(file).name == file and file not in ("", ".", "..") for file in files.values()):
            raise ValueError("a file's name leads out of the folder")
        return {str(name): str(file) for name, file in files.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} is not the index of a checkpoint: {type(error).__name__}: {error!s:.100}") from error


def _in_file(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    if not path.is_file():
        raise FormatError(f"{path} is not a regular file")
    if path.name.endswith(_PICKLED):
        yield from _of_mapping(_weights_in(load_torch(path))).items()
        return
    try:
        file: Any = safe_open(path, framework="pt", device="cpu")
        for name in file.keys():  # noqa: SIM118 - no mapping
            part = file.get_slice(name)
            dtype = _DTYPES.get(part.get_dtype())
            if dtype is None:
                raise FormatError(f"{path}: {name} has the dtype {part.get_dtype()}, which is not read here")
            yield name, StoredTensor(name, tuple(part.get_shape()), dtype, partial(_read_part, file, name, path))
    except SafetensorError as error:
        raise FormatError(f"{path} is no safetensors file: {error!s:.200}") from error


def _read_part(file: Any, name: str, path: Path, start: int, stop: int) -> torch.Tensor:
    try:
        part = file.get_slice(name)
        found = part[start:stop] if part.get_shape() else file.get_tensor(name)
    except SafetensorError as error:
        raise FormatError(f"{path}: {name} cannot be read: {error!s:.200}") from error
    assert isinstance(found, torch.Tensor)
    return found


def _weights_in(loaded: object) -> Mapping[str, torch.Tensor]:
    """Return the tensors of what was loaded by dotted names; of a trainer's file those of the model."""
    if isinstance(loaded, Mapping):
        for key in _WITHIN:
            if isinstance(loaded.get(key), Mapping):
                return _weights_in(loaded[key])
    return dict(_flat("", loaded))


def _flat(name: str, item: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(item, torch.Tensor):
        yield name, item
    elif isinstance(item, Mapping):
        for key, inner in item.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)


def _of_mapping(given: Mapping[str, Any]) -> dict[str, StoredTensor]:
    found = {}
    for name, tensor in given.items():
        if isinstance(tensor, torch.Tensor):
            if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
                raise FormatError(f"{name} is a {tensor.layout} tensor on {tensor.device}; weights are read if dense")
            found[name] = StoredTensor(name, tuple(tensor.shape), tensor.dtype, partial(_part_of, tensor.detach()))
    return found


def _part_of(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    return (tensor[start:stop] if tensor.ndim else tensor).cpu()


def _of_dump(dump: Dump, step: int | None, rank: int | None) -> Checkpoint:
    """Return the weights that a step of a dump reads; of several ranks each name is followed by the rank."""
    if not dump.steps:
        raise MissingDataError(f"{dump.path} has no recorded steps")
    recorded = dump.step(dump.steps[0] if step is None else step)
    ranks = {number: recorded.rank(number) for number in (recorded.ranks if rank is None else [rank])}
    tensors = _joined({f"rank {number}": _of_rank(one) for number, one in ranks.items()})
    return Checkpoint(str(dump.path), tensors, tuple(not_whole_lines(dump.path, ranks.values(), dump.problems)))


def _of_rank(rank: RankDump) -> dict[str, StoredTensor]:
    found = {}
    for name, value in recorded_weights(rank).items():
        read = partial(_of_value, value)
        found[name] = StoredTensor(name, tuple(value.shape), value.dtype, read)
    return found


def _of_value(value: Any, start: int, stop: int) -> torch.Tensor:
    return _part_of(value.shared_tensor(), start, stop)


def recorded_weights(rank: RankDump) -> dict[str, Value]:
    """Return the weights of a step whose bytes were recorded, as they were when first read."""
    flow = DataFlow(rank, "aten")
    leaves = named_leaves(flow, leaf_gradients(flow))
    found = {name: leaf for name, leaf in leaves.items() if leaf.has_data}
    known = {value.record.place for value in found.values()}
    for call in rank.calls.filter(kind="api", phase="forward"):
        roles = ["weight", "bias"]
        for slot, value in sorted(_read_by(call), key=lambda item: -len(item[1].shape)):
            role = _STATISTICS.get(slot) if call.api == "batch_norm" else None
            role = role or (roles.pop(0) if roles else "weight")
            if value.record.place not in known:
                known.add(value.record.place)
                found[_free_name(found, f"{call.module}.{role}".lstrip("."))] = value
    return found


def _read_by(call: Call) -> Iterator[tuple[str, Value]]:
    """Yield what a call reads that may be a weight."""
    data = _LAYERS.get(call.api)
    for slot, value in call.input_values():
        if not value.has_data or value.undefined or value.producer is not None:
            continue
        if value.requires_grad or (data is not None and slot != f"input.{data}"):
            yield slot, value


def _free_name(taken: dict[str, Value], name: str) -> str:
    number, free = 1, name
    while free in taken:
        number, free = number + 1, f"{name}.{number}"
    return free
