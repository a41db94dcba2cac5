"""What the user knows about two dumps that no algorithm can: a YAML file of renames and pairs.

.. code-block:: yaml

    modules:                       # a prefix of the target's module paths: that of the baseline
      transformer.h: model.layers
    ops:                           # the target's op: the baseline's
      npu::npu_rms_norm: aten::rms_norm
    calls:                         # a call of the target: its partner in the baseline
      Aten.addmm.3.forward: Aten.addmm.5.forward

``aten-dump compare --write-mapping FILE`` writes one of what was found, to be corrected and read back.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...errors import ConfigError, StoreError
from ..yaml_file import load_yaml

_FIELDS: Final = ("modules", "ops", "calls")


@dataclass(frozen=True, slots=True)
class Mapping:
    """Renames from target to baseline."""

    modules: dict[str, str] = field(default_factory=dict)
    ops: dict[str, str] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)

    def module(self, fqn: str) -> str:
        """Return the baseline's path of a target's module: the longest prefix that is named counts."""
        if not self.modules:
            return fqn
        prefix = fqn
        while prefix:
            if prefix in self.modules:
                renamed = self.modules[prefix] + fqn[len(prefix) :]
                return renamed.removeprefix(".")
            prefix = prefix.rpartition(".")[0]
        return f"{self.modules['']}.{fqn}".strip(".") if "" in self.modules else fqn

    def op(self, op: str) -> str:
        """Return the baseline's name of a target's op."""
        return self.ops.get(op, op)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Mapping:
        """Read a mapping file.

        Raises:
            ConfigError: it is missing, not valid YAML, or holds something else than the three tables of texts.
        """
        file = Path(path)
        loaded = load_yaml(file, "mapping", "is")
        return cls.from_dict(loaded or {}, f"mapping {file}")

    @classmethod
    def from_dict(cls, tables: Any, source: str) -> Mapping:
        """Make a mapping from plain values; `source` is named in errors."""
        if not isinstance(tables, dict) or set(tables) - set(_FIELDS):
            found = ", ".join(map(str, tables)) if isinstance(tables, dict) else type(tables).__name__
            raise ConfigError(f"{source} holds {found}; allowed are the tables {', '.join(_FIELDS)}")
        for name, table in tables.items():
            texts = isinstance(table, dict) and all(isinstance(text, str) for pair in table.items() for text in pair)
            if table is not None and not texts:
                raise ConfigError(f"{source}: {name} is {table!r}; it must map texts of the target to the baseline's")
        return cls(**{name: dict(table or {}) for name, table in tables.items()})

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the mapping as a file that `read` takes."""
        import yaml

        text = yaml.safe_dump({name: getattr(self, name) for name in _FIELDS}, sort_keys=False, allow_unicode=True)
        try:
            Path(path).write_text("# target: baseline\n" + text, encoding="utf-8")
        except OSError as error:
            raise StoreError(error.errno, f"cannot write mapping {path}: {error.strerror}") from error


def found_modules(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the renames that pairs of module paths agree on, without those that follow from an outer one."""
    votes: dict[str, Counter[str]] = {}
    for target, baseline in pairs:
        votes.setdefault(target, Counter())[baseline] += 1
    found: dict[str, str] = {}
    for target in sorted(votes, key=lambda fqn: fqn.count(".")):
        baseline = votes[target].most_common(1)[0][0]
        if Mapping(modules=found).module(target) != baseline:
            found[target] = baseline
    return found
