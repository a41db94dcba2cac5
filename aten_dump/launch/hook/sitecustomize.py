"""Imported by each Python that ``aten-dump run`` starts, before anything else: waits for torch, then gives way.

Nothing of aten_dump is imported here, and nothing else happens until torch is: most processes of a launcher never do.
The folder of this file is taken off ``sys.path``, and a ``sitecustomize`` of the user's own is imported as it would
have been.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

from torch_import import find_sitecustomize, watch  # type: ignore[import-not-found]  # noqa: E402 - of this folder, first on sys.path

watch()
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
del sys.modules["torch_import"]
find_sitecustomize(sys.path)
