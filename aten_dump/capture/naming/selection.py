"""Which calls a configuration records."""

from __future__ import annotations

from ...config import DumpConfig
from ...patterns import module_test, op_test
from .call_name import API, ATEN, BACKWARD, FORWARD, MODULE, NODE, CallName

_KINDS_OF_LEVEL = {"aten": (ATEN, NODE), "api": (API,), "module": (MODULE,), "mix": (ATEN, API, MODULE, NODE)}


class Selection:
    """Decides, once per op and module path, whether calls are recorded."""

    def __init__(self, config: DumpConfig) -> None:
        self._kinds = _KINDS_OF_LEVEL[config.level]
        self._ops = [op_test(text, "DumpConfig.ops") for text in config.ops]
        self._exclude = [op_test(text, "DumpConfig.exclude_ops") for text in config.exclude_ops]
        self._modules = [module_test(glob, "DumpConfig.modules") for glob in config.modules]
        self._known: dict[tuple[int, CallName, str], bool] = {}
        self._last_forward: int | None = None  # see `only_backward_of`
        chosen = {name: getattr(config, name) for name in ("level", "ops", "exclude_ops", "modules")}
        self._text = self.text = ", ".join(f"{name}={value!r}" for name, value in chosen.items() if value)  # for people
        self.everything = not (config.ops or config.exclude_ops or config.modules)
        self.takes_all = self._takes_all = self.everything and config.level == "mix"  # of whatever kind

    def only_backward_of(self, last_forward: int | None) -> None:
        """Record from now on only the backward of calls up to this id; None: what the configuration selects."""
        self._last_forward = last_forward
        self.takes_all = self._takes_all and last_forward is None
        if last_forward is not None:
            self.text = f"{self._text}{', ' if self._text else ''}pause(keep_backward=True)"

    def records(self, kind: int, name: CallName, fqn: str, phase: int = FORWARD, forward: int = 0) -> bool:
        """Return True if a call of `name` inside the module `fqn` is recorded; `forward` is that of its backward."""
        last = self._last_forward
        if last is not None and (phase != BACKWARD or not 0 < forward <= last):
            return False
        if self.everything:
            return kind in self._kinds
        key = (kind, name, fqn)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._decide(kind, name, fqn)
        return known

    def _decide(self, kind: int, name: CallName, fqn: str) -> bool:
        if kind not in self._kinds or (self._modules and not any(holds(fqn) for holds in self._modules)):
            return False
        names = (name.op, f"{name.prefix}.{name.api}")
        if any(matches(*names) for matches in self._exclude):
            return False
        if not self._ops or (kind == MODULE and self._modules):
            return True
        return kind != MODULE and any(matches(*names) for matches in self._ops)
