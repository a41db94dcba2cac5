"""What was found of each weight, and the lines that say it, alike ones together.

Theory of operation
    Layers are numbered, so a name is a template and its numbers. What was paired by contents teaches which template
    became which, and which module; the rest is how alike the texts are. Names only choose between tensors that contents
    allow, and say what an altered tensor is held against.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

from .siblings import relations
from .weight_records import Weight, numbers, places, template, with_places

_WRAPPERS: Final = re.compile(r"(^|\.)(base_layer|base_model|_orig_mod|module|_fsdp_wrapped_module)(?=\.)")

_ORDER: Final = ("missing", "extra", "exchanged", "altered")
_MOST_NUMBERS: Final = 8
_MOST_NAMES: Final = 4


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
        unlike = [weight for weight in self.found if weight.accounted and "unlike" in weight.how]
        sides = ", ".join(f"{label} ({count} tensors)" for label, count in zip(self.labels, self.counts, strict=True))
        if wrong:
            head = f"{len(wrong)} of {len(self.found)} weights are not accounted for"
        else:
            head = f"{'All weights' if not self.not_whole else 'The weights that are there'} are accounted for"
        if unlike:
            head += f", {len(unlike)} {'more' if wrong else 'of them'} laid out unlike other layers"
        right = [weight for weight in self.found if weight.accounted and "unlike" not in weight.how]
        blocks = (
            ("Not accounted for:", wrong),
            ("Accounted for, but laid out unlike the same weight of other layers:", unlike),
            ("Accounted for:", right),
        )
        known = dict(zip(map(id, self.found), relations(self.found), strict=True))
        lines = [line for title, some in blocks for line in _block(title, some, known)]
        return "\n".join([*self.not_whole, f"{head}: {sides}", *lines])


def _block(title: str, weights: Sequence[Weight], known: Mapping[int, Hashable]) -> Iterator[str]:
    groups: dict[Hashable, list[Weight]] = {}
    for weight in weights:
        groups.setdefault((known[id(weight)], weight.how, weight.text), []).append(weight)
    if groups:
        yield ""
        yield title
    for group in sorted(groups.values(), key=_place):
        yield f"  {_line(group)}"


def _place(group: Sequence[Weight]) -> tuple[int, float]:
    """Return where a group belongs: others than expected by kind, the farthest first; the rest as they come."""
    if group[0].accounted:
        return 0, 0.0
    kind = group[0].how[0] if group[0].how else ""
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER), -(group[0].relative_l2 or 0.0)


def _line(group: Sequence[Weight]) -> str:
    """Return one line for weights of one relation: their names with ``*`` for what differs from layer to layer."""
    first = group[0]
    ours, theirs = (_names([getattr(weight, side) for weight in group]) for side in ("target", "baseline"))
    names = ours if ours == theirs or not theirs else f"{ours} = {theirs}" if ours else theirs
    count, layers = (f"{len(group)} x ", _numbers_text(group)) if len(group) > 1 else ("", "")
    parts = dict.fromkeys(weight.part for weight in group if weight.part)
    shown = list(parts) if len(parts) < 3 else [*list(parts)[:2], "..."]
    texts = [*shown, *([first.text] if first.text else [])]
    return f"{count}{names}{layers}: {', '.join(texts)}"


def _names(rows: Sequence[tuple[str, ...]]) -> str:
    """Return the names of one side of a group, ``*`` for what differs from row to row; many names are in braces."""
    names = [_starred([row[place] for row in rows]) for place in range(len(rows[0]))]
    if len(names) > _MOST_NAMES:
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault(template(name), []).append(name)
        names = [_braced(some) for some in alike.values()]
    return " + ".join(dict.fromkeys(names))


def _braced(names: Sequence[str]) -> str:
    """Return names of one template as one: ``experts.{0-2, 5}.weight``."""
    columns = list(zip(*map(places, names), strict=True))
    varying = [column for column in columns if len(set(column)) > 1]
    if len(varying) < 2:
        shown = [f"{{{_listed(column)}}}" if column in varying else column[0] for column in columns]
        return with_places(names[0], shown)
    starred = with_places(names[0], ["*" if column in varying else column[0] for column in columns])
    return f"{starred} ({_listed([*map('.'.join, zip(*varying, strict=True))])})"


def _varying(names: Sequence[str]) -> list[int]:
    """Return which of their numbers names of one template do not have in common."""
    return [place for place, column in enumerate(zip(*map(numbers, names), strict=True)) if len(set(column)) > 1]


def _starred(names: Sequence[str]) -> str:
    """Return names of one template as one, with ``*`` for the numbers that differ."""
    varying = _varying(names)
    return with_places(
        names[0], ["*" if place in varying else str(number) for place, number in enumerate(numbers(names[0]))]
    )


def _numbers_text(group: Sequence[Weight]) -> str:
    """Return the layers of a group; of both sides if these count otherwise."""
    sides = []
    for some in ([weight.target for weight in group], [weight.baseline for weight in group]):
        heads = [names[0] for names in some if names]
        varying = _varying(heads)
        sides.append([tuple(numbers(name)[place] for place in varying) for name in heads])
    ours, theirs = sides
    is_same = all(one[: len(its)] == its[: len(one)] for one, its in zip(ours, theirs, strict=False))
    if is_same and len((ours or theirs)[0]) != 1:
        return ""
    order = sorted(range(len(group)), key=lambda place: (ours or theirs)[place])
    texts = [_listed([".".join(map(str, side[place])) for place in order]) for side in sides if side and any(side)]
    return f" ({texts[0]})" if is_same else f" ({' = '.join(texts)})"


def _listed(shown: Sequence[str]) -> str:
    """Return numbers as text, those that follow one another as a range: ``0-3, 5``."""
    texts: list[str] = []
    start = 0
    for stop in range(1, len(shown) + 1):
        goes_on = stop < len(shown) and shown[stop].isdigit() and shown[stop - 1].isdigit()
        if not (goes_on and int(shown[stop]) == int(shown[stop - 1]) + 1):
            run = shown[start:stop]
            texts += [f"{run[0]}-{run[-1]}"] if len(run) > 1 else run
            start = stop
    return ", ".join([*texts[:_MOST_NUMBERS], *(["..."] if len(texts) > _MOST_NUMBERS else [])])


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
