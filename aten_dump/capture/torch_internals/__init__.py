"""All that leans on private parts of torch: quiet dispatch, tracing, node hooks, saved tensors, formulas.

In: nothing from this package.
Out: what the other rooms need of torch, by names that say what it is.
"""

import re
from typing import Final

import torch

from ...errors import CaptureError

OLDEST: Final = (2, 6)  # the oldest torch that is recorded


def refuse_older(version: str) -> None:
    """Raise where `version` is that of a torch that is too old; one that is not a number is taken for a new one.

    Raises:
        CaptureError: it is too old.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise CaptureError(
            f"aten_dump records with torch {OLDEST[0]}.{OLDEST[1]} or newer; this is {version}: upgrade torch"
        )


refuse_older(torch.__version__)
