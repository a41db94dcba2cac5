"""Which calls a configuration records."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from ...config import DumpConfig
from .call_name import API, ATEN, MODULE, NODE, CallName

_KINDS_OF_LEVEL = {"aten": (ATEN, NODE), "api": (API,), "module": (MODULE,), "mix": (ATEN, API, MODULE, NODE)}

_PREFIXES = frozenset(["Tensor", "Torch", "Functional", "NPU", "VF", "Aten", "Distributed", "Custom", "Node"])


class Selection:
    """Decides, once per op and module path, whether calls are recorded."""

    def __init__(self, config: DumpConfig) -> None:
        self._kinds = _KINDS_OF_LEVEL[config.level]
        self._ops = [_matcher(pattern) for pattern in config.ops]
        self._exclude = [_matcher(pattern) for pattern in config.exclude_ops]
        self._modules = config.modules
        self._known: dict[tuple[int, CallName, str], bool] = {}
        chosen = {name: getattr(config, name) for name in ("level", "ops", "exclude_ops", "modules")}
        self.text = ", ".join(f"{name}={value!r}" for name, value in chosen.items() if value)  # for people
        self.everything = not (config.ops or config.exclude_ops or config.modules)
        self.takes_all = self.everything and config.level == "mix"  # of whatever kind

    def records(self, kind: int, name: CallName, fqn: str) -> bool:
        """Tell whether a call of `name` inside the module `fqn` is recorded."""
        if self.everything:
            return kind in self._kinds
        key = (kind, name, fqn)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._decide(kind, name, fqn)
        return known

    def _decide(self, kind: int, name: CallName, fqn: str) -> bool:
        if kind not in self._kinds or (self._modules and not self._inside(fqn)):
            return False
        names = (name.op, f"{name.prefix}.{name.api}")
        if any(matches(n) for matches in self._exclude for n in names):
            return False
        if not self._ops or (kind == MODULE and self._modules):
            return True
        return kind != MODULE and any(matches(n) for matches in self._ops for n in names)

    def _inside(self, fqn: str) -> bool:
        parts = fqn.split(".")
        paths = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
        return any(fnmatchcase(path, pattern) for pattern in self._modules for path in paths)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return the test of one pattern.

    ``regex:`` searches; an op (``aten::add``, ``aten::add.Tensor``) or a prefix and api (``Functional.linear``) is
    an exact name, an op without its overload standing for all of them; anything else is a part of a name in any case.
    """
    if pattern.startswith("regex:"):
        expression = re.compile(pattern[len("regex:") :])
        return lambda name: expression.search(name) is not None
    if "::" in pattern or pattern.partition(".")[0] in _PREFIXES:
        return lambda name: name == pattern or ("::" in pattern and name.startswith(pattern + "."))
    part = pattern.lower()
    return lambda name: part in name.lower()
