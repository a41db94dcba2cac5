"""Hash and statistics of recorded elements, as the recorder takes them: where the other side has these alone."""

from __future__ import annotations

import math

import torch

from ...dump import Value
from ...dump.value_statistics import Number
from ...errors import MissingDataError
from ...store.writing.checksums import HASHES


def hash_as(value: Value, other: Value) -> str | None:
    """Return the hash of a value's elements by the algorithm of the dump that another value is of.

    Returns:
        None where that is none of ours, or a value's bytes are not there or not in a row of elements.
    """
    digest = HASHES.get(str(other.rank.config.get("hash")))
    elements = None if digest is None else _elements(value)
    return None if digest is None or elements is None else digest(elements.view(torch.uint8).numpy().data).hex()


def statistics_of(value: Value) -> dict[str, Number] | None:
    """Return the statistics of a value's elements, as `one_tensor` of the recorder defines them.

    Returns:
        None of complex numbers, and where a value's bytes are not there or not in a row of elements.
    """
    elements = _elements(value)
    if elements is None or elements.is_complex():
        return None
    x = elements.double()
    count, nan = x.numel(), int(x.isnan().sum())
    return {
        "count": count,
        "min": math.nan if nan else x.min().item(),
        "max": math.nan if nan else x.max().item(),
        "mean": x.mean().item(),
        "l2norm": torch.linalg.vector_norm(x).item(),
        "std": x.std().item() if count > 1 else None,
        "nan": nan,
        "posinf": int((x == math.inf).sum()),
        "neginf": int((x == -math.inf).sum()),
        "zero": int((x == 0).sum()),
        "negative": int((x < 0).sum()),
        "positive": int((x > 0).sum()),
    }


def _elements(value: Value) -> torch.Tensor | None:
    """Return a value's elements in row-major order, at least one, with conj and neg bits applied."""
    if not value.has_data or value.layout_name != "strided" or not value.numel:
        return None
    try:
        return value.tensor().resolve_conj().resolve_neg().contiguous().reshape(-1)
    except (MissingDataError, RuntimeError):
        return None
