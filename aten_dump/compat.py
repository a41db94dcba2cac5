"""The classes of other recorders, with their methods and parameters: in a script of theirs only the import changes.

In: the calls of such a script. Out: a `DumpMode` that is entered, paused and closed as they say.

>>> from aten_dump.compat import PrecisionDebugger  # was: from msprobe.pytorch import PrecisionDebugger
"""

from .other_tools.apex.hooker_and_dumper import HookerAndDumper
from .other_tools.msprobe.precision_debugger import PrecisionDebugger
from .other_tools.msprobe.reproducibility import seed_all

__all__ = ["HookerAndDumper", "PrecisionDebugger", "seed_all"]
