"""Names of weights: which of two are likelier the same, by what contents have already paired.

Theory of operation
    Layers are numbered, so a name is a template and its numbers. What was paired by contents teaches which template
    became which, and which module; the rest is how alike the texts are. Names only choose between tensors that contents
    allow, and say what an altered tensor is held against.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

_NUMBER: Final = re.compile(r"(?<![^.])\d+(?=\.|$)")  # of a layer or an expert: between dots
_WRAPPERS: Final = re.compile(r"(^|\.)(base_layer|base_model|_orig_mod|module|_fsdp_wrapped_module)(?=\.)")


@lru_cache(maxsize=1 << 16)
def template(name: str) -> str:
    """Return a name with ``*`` for its numbers."""
    return _NUMBER.sub("*", name)


@lru_cache(maxsize=1 << 16)
def numbers(name: str) -> tuple[int, ...]:
    """Return the numbers in a name."""
    return tuple(map(int, _NUMBER.findall(name)))


@lru_cache(maxsize=1 << 16)
def _bare(name: str) -> str:
    return _WRAPPERS.sub("", template(name)).lstrip(".")


@lru_cache(maxsize=1 << 18)
def _alike(one: str, other: str) -> float:
    ends = SequenceMatcher(None, one.rsplit(".", 2)[-2:], other.rsplit(".", 2)[-2:]).ratio()
    return SequenceMatcher(None, one, other, autojunk=False).ratio() + ends


class Names:
    """What is known of which names belong together."""

    def __init__(self) -> None:
        self._templates: Counter[tuple[str, str]] = Counter()
        self._modules: Counter[tuple[str, str]] = Counter()

    def learn(self, target: str, baseline: str) -> None:
        """Take in that two tensors are the same."""
        if numbers(target) == numbers(baseline):
            self._templates[template(target), template(baseline)] += 1
        ones, others = target.split("."), baseline.split(".")
        for one in range(1, len(ones)):
            for other in range(1, len(others)):
                self._modules[".".join(ones[:one]), ".".join(others[:other])] += 1

    def closeness(self, target: str, baseline: str) -> float:
        """Return how likely two names mean the same tensor; larger is likelier."""
        if target == baseline:
            return 10.0
        found = _alike(_bare(target), _bare(baseline))
        if numbers(target) == numbers(baseline):
            found += 1.0
            if self._templates[template(target), template(baseline)]:
                found += 4.0
        modules = target.rpartition(".")[0], baseline.rpartition(".")[0]
        return found + (1.0 if self._modules[modules] else 0.0)
