"""Watch a PyTorch program and hand what it does to a sink.

Imports `config`, `errors` and `store` only: capture never reads a dump.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from typing import Final

_recorder = find_spec(f"{__name__}.recorder")
# True if the hot modules were compiled (hatch_build.py): Python takes an extension before the source beside it.
IS_COMPILED: Final = _recorder is not None and (_recorder.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
