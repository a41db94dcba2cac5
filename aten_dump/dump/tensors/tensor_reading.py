"""From recorded bytes back to a tensor on the CPU.

Theory of operation
    Only the bytes that the geometry reaches are read, into memory of the tensor's own: a shard's blobs are packed
    without holes, so their addresses are not aligned for every dtype, and what a user writes into a tensor must never
    reach a file. The bytes become a tensor of the dtype, then the recorded geometry is laid over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from ...errors import AtenDumpError, FormatError, MissingDataError
from ...geometry import reach
from ...store import records
from ...torch_names import DTYPES, neg_view, quantized_per_channel, quantized_per_tensor
from ..index.source import Source
from ..index.tables import Tables
from ..value_facts import ValueFacts
from ..why_absent import why_no_data

Parts = Mapping[str, Callable[[], torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Stored:
    """The bytes of one value."""

    value: ValueFacts
    tables: Tables
    source: Source
    data: records.Data
    blob: records.Blob


def load(value: ValueFacts, tables: Tables, source: Source, parts: Parts) -> torch.Tensor:
    """Read the tensor of a value; see ``Value.tensor``.

    Args:
        value: what to read.
        tables: the index that it is in.
        source: where the bytes are.
        parts: read the tensors that a sparse one is made of, by name.
    """
    if not (value.record.extra or value.record.flags):  # most values: nothing about them is special
        return _read(find_stored(value, tables, source))
    if parts and value.layout_name in _BY_LAYOUT:
        return tensor_of_parts(value, parts)
    raw = _read(find_stored(value, tables, source))
    if value.conjugate:
        raw = torch.conj(raw)
    if value.negative:
        raw = neg_view(raw)
    quantized = value.extra.get("quantized")
    return _put_together(value, "quantized", lambda: _quantize(raw, quantized)) if quantized else raw


def tensor_of_parts(value: ValueFacts, parts: Parts) -> torch.Tensor:
    """Put a sparse tensor together of what `parts` give, by name.

    Raises:
        FormatError: they do not fit.
        MissingDataError: one of them was not recorded.
    """
    return _put_together(value, value.layout_name, lambda: _BY_LAYOUT[value.layout_name](value, parts))


def find_stored(value: ValueFacts, tables: Tables, source: Source) -> Stored:
    """Return where the bytes of a value are.

    Raises:
        MissingDataError: there are none.
    """
    data = tables.data.find(value.id)
    blob = None if data is None else tables.blobs.find(data.blob)
    if value.undefined or value.opaque or data is None or blob is None:
        raise MissingDataError(why_no_data(value, tables, source))
    return Stored(value, tables, source, data, blob)


def _put_together(value: ValueFacts, kind: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Make a tensor of parts, which may not fit: indices out of range end the process in the op that follows them."""
    try:
        return make()
    except AtenDumpError:
        raise
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError) as error:
        text = str(error).strip().partition("\n")[0]
        raise FormatError(
            f"value {value.id} of {value.where} cannot be a {kind} tensor of shape {list(value.shape)}: {text}; "
            "its parts do not fit together, the index is damaged: run `aten-dump verify`"
        ) from error


def _read(stored: Stored) -> torch.Tensor:
    """Return the stored elements under the recorded geometry, before conj, neg and quantization."""
    value, data = stored.value, stored.data
    dtype = stored_dtype(value)
    layout = records.LAYOUTS[data.layout] if data.layout < len(records.LAYOUTS) else f"number {data.layout}"
    if layout == "sample":
        count = min(value.numel, (stored.blob.nbytes - data.offset) // dtype.itemsize)
        return stored_elements(stored, count, dtype)
    if value.numel == 0:
        return torch.empty_strided(value.shape, value.stride, dtype=dtype, device="cpu")
    if layout == "strided":
        flat = stored_elements(stored, reach(value.shape, value.stride), dtype)
        return flat.as_strided(value.shape, value.stride, 0)
    if layout == "compact":
        flat = stored_elements(stored, value.numel, dtype)
        return _restride(value, flat.view(value.shape))
    raise FormatError(
        f"value {value.id} of {value.where} has data layout {layout}; known are {', '.join(records.LAYOUTS)}"
    )


def stored_dtype(value: ValueFacts) -> torch.dtype:
    """Return the dtype of the stored elements: of a quantized tensor that of its integers."""
    if value.dtype in _PACKED:
        raise MissingDataError(
            f"value {value.id} of {value.where} has dtype {value.dtype_name}, several elements to a byte, which torch "
            "cannot make a tensor of again; its raw bytes are in the shard (see docs/format.md)"
        )
    return _INTEGERS.get(value.dtype, value.dtype)


_INTEGERS: Final[Mapping[torch.dtype, torch.dtype]] = {
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
}
_PACKED: Final = frozenset({torch.quint4x2, torch.quint2x4})


def stored_elements(stored: Stored, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Read `count` elements from the start of a value, as a 1-D tensor."""
    value, data, blob = stored.value, stored.data, stored.blob
    stop = data.offset + count * dtype.itemsize
    if count < 0 or stop > blob.nbytes:
        raise FormatError(
            f"value {value.id} of {value.where} ends at byte {stop} of blob {blob.id}, which has {blob.nbytes}: "
            "the index is damaged; run `aten-dump verify`"
        )
    if count == 0:
        return torch.empty(0, dtype=dtype, device="cpu")
    raw = stored.source.read(stored.tables, blob, data.offset, stop)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype)


def _restride(value: ValueFacts, dense: torch.Tensor) -> torch.Tensor:
    """Return row-major elements under the stride of a value, which may lay elements on one another."""
    stride = value.stride
    if dense.stride() == stride:
        return dense
    # Elements are copied as integers of their size: not every dtype can copy, and bits must stay as they are.
    as_integer = SAME_SIZE.get(dense.dtype.itemsize, dense.dtype)
    source = dense.view(as_integer)
    flat = _memory_for(value, as_integer)
    if _overlaps(dense.shape, stride):
        places = torch.zeros(dense.shape, dtype=torch.int64, device="cpu")
        for dim, (size, step) in enumerate(zip(dense.shape, stride, strict=False)):
            places += (torch.arange(size, device="cpu") * step).reshape(
                [size if d == dim else 1 for d in range(dense.dim())]
            )
        flat[places.reshape(-1)] = source.reshape(-1)
    else:
        flat.as_strided(dense.shape, stride).copy_(source)
    return flat.view(dense.dtype).as_strided(dense.shape, stride)


def _memory_for(value: ValueFacts, dtype: torch.dtype) -> torch.Tensor:
    """Return memory from the first element of a value to its last, as a 1-D tensor: far more than is stored of it."""
    count = reach(value.shape, value.stride)
    try:
        return torch.empty(count, dtype=dtype, device="cpu")
    except RuntimeError as error:  # torch's allocator
        raise FormatError(
            f"value {value.id} of {value.where} reaches over {count * dtype.itemsize} bytes of memory (shape "
            f"{list(value.shape)}, stride {list(value.stride)}), more than there are here; its storage had "
            f"{value.storage_nbytes}, and {value.numel * dtype.itemsize} are stored: if that is less, the index is "
            "damaged: run `aten-dump verify`; else read it in parts, by `Value.blocks`"
        ) from error


def _overlaps(shape: torch.Size, stride: tuple[int, ...]) -> bool:
    """Return True if a geometry may put two elements in one place."""
    reach = 0
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=False) if size > 1):
        if step <= reach:
            return True
        reach += (size - 1) * step
    return False


SAME_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _quantize(integers: torch.Tensor, scheme: Mapping[str, Any]) -> torch.Tensor:
    """Make a quantized tensor of its integers and the scheme in ``Value.extra["quantized"]``."""
    if str(scheme["scheme"]).startswith("per_tensor"):
        return quantized_per_tensor(integers, float(scheme["scale"]), int(scheme["zero_point"]))
    points_dtype = DTYPES.get(str(scheme.get("points_dtype", "int64")), torch.int64)
    scales = torch.tensor(scheme["scales"], dtype=torch.float64, device="cpu")
    zero_points = torch.tensor(scheme["zero_points"], dtype=points_dtype, device="cpu")
    if not scales.numel() == zero_points.numel() == integers.shape[int(scheme["axis"])]:
        raise ValueError(f"{scales.numel()} scales and {zero_points.numel()} zero points")
    return quantized_per_channel(integers, scales, zero_points, int(scheme["axis"]))


_Build = Callable[[ValueFacts, Parts], torch.Tensor]


def _sparse_coo(value: ValueFacts, parts: Parts) -> torch.Tensor:
    coalesced = value.extra.get("coalesced")
    values = _part(value, parts, "values")
    return torch.sparse_coo_tensor(
        _part(value, parts, "indices"),
        values,
        value.shape,
        device=values.device,
        is_coalesced=None if coalesced is None else bool(coalesced),
        check_invariants=True,
    )


def _compressed(layout: torch.layout, outer: str, inner: str) -> _Build:
    """Return the builder of a compressed sparse layout, whose index tensors are named `outer` and `inner`."""

    def build(value: ValueFacts, parts: Parts) -> torch.Tensor:
        values = _part(value, parts, "values")
        return torch.sparse_compressed_tensor(
            _part(value, parts, outer),
            _part(value, parts, inner),
            values,
            size=value.shape,
            device=values.device,
            layout=layout,
            check_invariants=True,
        )

    return build


def _part(value: ValueFacts, parts: Parts, name: str) -> torch.Tensor:
    if name not in parts:
        raise MissingDataError(
            f"the {name} of {value!r} in {value.where} were not recorded; recorded parts: {', '.join(parts) or 'none'}"
        )
    return parts[name]()


_BY_LAYOUT: Final[Mapping[str, _Build]] = {
    "sparse_coo": _sparse_coo,
    "sparse_csr": _compressed(torch.sparse_csr, "crow_indices", "col_indices"),
    "sparse_csc": _compressed(torch.sparse_csc, "ccol_indices", "row_indices"),
    "sparse_bsr": _compressed(torch.sparse_bsr, "crow_indices", "col_indices"),
    "sparse_bsc": _compressed(torch.sparse_bsc, "ccol_indices", "row_indices"),
}
