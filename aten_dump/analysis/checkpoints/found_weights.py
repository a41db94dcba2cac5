"""What was found of each weight, and the lines that say it, alike ones together.

Theory of operation
    Layers are numbered, so a name is a template and its numbers. What was paired by contents teaches which template
    became which, and which module; the rest is how alike the texts are. Names only choose between tensors that contents
    allow, and say what an altered tensor is held against.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, Final

_NUMBER: Final = re.compile(r"(?<![^.])\d+(?=\.|$)")  # of a layer or an expert: between dots
_WRAPPERS: Final = re.compile(r"(^|\.)(base_layer|base_model|_orig_mod|module|_fsdp_wrapped_module)(?=\.)")

COLUMNS: Final = (
    "target", "baseline", "how", "text", "part", "accounted", "ulp", "relative_l2", "differing", "elements",
)  # fmt: skip
_ORDER: Final = ("missing", "extra", "altered")


@dataclass(frozen=True, slots=True)
class Weight:
    """How tensors of the target are laid out in tensors of the baseline; one side may have none."""

    target: tuple[str, ...]
    baseline: tuple[str, ...]
    how: tuple[str, ...]  # kinds: equal, cast, transposed, permuted, fused, split, ..., altered, missing, extra
    text: str
    accounted: bool = True
    ulp: float | None = None  # most that rounding moved an element, of the coarser dtype
    relative_l2: float | None = None
    differing: int | None = None  # elements beyond what rounding allows
    elements: int | None = None
    part: str = ""  # of the baseline's tensors, where it is not all of them: rows 0-767 of 2304

    @property
    def row(self) -> dict[str, Any]:
        """All of it by column, as CSV and JSON have it."""
        cells = {name: getattr(self, name) for name in COLUMNS}
        return cells | {name: " + ".join(cells[name]) for name in ("target", "baseline", "how")}


@dataclass(frozen=True, slots=True)
class Weights:
    """Which weight of a target became which of a baseline.

    Example:
        >>> found = weights("ported.safetensors", "original/")
        >>> found.accounted, [weight.target for weight in found if not weight.accounted]
        (True, [])
    """

    labels: tuple[str, str]
    counts: tuple[int, int]
    found: tuple[Weight, ...]
    not_whole: tuple[str, ...] = ()  # what the dumps lack, in sentences

    @property
    def accounted(self) -> bool:
        """True if every tensor of both sides is accounted for."""
        return all(weight.accounted for weight in self.found)

    @property
    def exit_code(self) -> int:
        """0 if all weights are accounted for, 1 if one is not, 2 if what is there is right and something is missing."""
        return 1 if not self.accounted else 2 if self.not_whole else 0

    def __iter__(self) -> Iterator[Weight]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def of(self, name: str) -> Weight:
        """Return what was found of a tensor of the target, or of one that only the baseline has.

        Raises:
            KeyError: no tensor has the name.
        """
        for side in ("target", "baseline"):
            for weight in self.found:
                if name in getattr(weight, side):
                    return weight
        raise KeyError(name)

    def answer(self) -> str:
        """Return all of it in lines: first the verdict, then what is not accounted for, then the rest."""
        wrong = [weight for weight in self.found if not weight.accounted]
        sides = ", ".join(f"{label} ({count} tensors)" for label, count in zip(self.labels, self.counts, strict=True))
        if wrong:
            head = f"{len(wrong)} of {len(self.found)} weights are not accounted for: {sides}"
        else:
            head = f"{'All weights' if not self.not_whole else 'The weights that are there'} are accounted for: {sides}"
        right = [weight for weight in self.found if weight.accounted]
        lines = [*self.not_whole, head, *_block("Not accounted for:", wrong), *_block("Accounted for:", right)]
        return "\n".join(lines)


def _block(title: str, weights: Sequence[Weight]) -> Iterator[str]:
    groups: dict[tuple[str, str, str], list[Weight]] = {}
    for weight in weights:
        key = _templates(weight.target), _templates(weight.baseline), weight.text
        groups.setdefault(key, []).append(weight)
    if groups:
        yield ""
        yield title
    for group in sorted(groups.values(), key=_place):
        yield f"  {_line(group)}"


def _templates(names: Sequence[str]) -> str:
    """Return names with ``*`` for the number that differs from layer to layer."""
    return " + ".join(dict.fromkeys(map(template, names)))


def _place(group: Sequence[Weight]) -> tuple[int, float]:
    """Return where a group belongs: others than expected by kind, the farthest first; the rest as they come."""
    if group[0].accounted:
        return 0, 0.0
    kind = group[0].how[0] if group[0].how else ""
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER), -(group[0].relative_l2 or 0.0)


def _line(group: Sequence[Weight]) -> str:
    first = group[0]
    if len(group) == 1:
        ours, theirs, count = " + ".join(_short(first.target)), " + ".join(_short(first.baseline)), ""
    else:
        ours, theirs = _templates(first.target), _templates(first.baseline)
        count = f"{len(group)} x "
    same = ours == theirs
    names = ours if same or not theirs else f"{ours} = {theirs}" if ours else theirs
    places = _numbers_text(group) if len(group) > 1 else ""
    parts = dict.fromkeys(weight.part for weight in group if weight.part)
    shown = list(parts) if len(parts) < 3 else [*list(parts)[:2], "..."]
    texts = [*shown, *([first.text] if first.text else [])]
    return f"{count}{names}{places}: {', '.join(texts)}"


def _short(names: Sequence[str]) -> Sequence[str]:
    """Return names, of many alike ones the first and the last."""
    if len(names) <= 4 or len(set(map(template, names))) > 1:
        return names
    return (names[0], "...", names[-1])


def _numbers_text(group: Sequence[Weight]) -> str:
    """Return the layers of a group, if its names have one number."""
    found = sorted(places[0] for weight in group if len(places := numbers((weight.target or weight.baseline)[0])) == 1)
    if len(found) != len(group) or len(set(found)) != len(group):
        return ""
    if found == list(range(found[0], found[0] + len(found))):
        return f" ({found[0]}-{found[-1]})"
    return f" ({', '.join(map(str, found[:8]))}{', ...' if len(found) > 8 else ''})"


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
