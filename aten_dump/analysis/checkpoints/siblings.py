"""Hold weights against their siblings, the weights of the same name in other layers.

Theory of operation
    The relation of a weight is its partner's name, which of the partner's vectors it holds, how these are laid out, and
    its partner's number. Numbers are compared by their order, so an offset or a stride is the same relation for all
    layers. A weight with another relation than its siblings may be right (a layer without RoPE is not permuted), so
    that is only said. Weights that hold each other's contents are exchanged. What belongs in a slot is known from the
    same slot in most other layers, or from where most other weights of the same module are. Copies prove nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from .weight_records import Link, Slot, Weight, containers, filled, numbers, template, with_places

_MOST_SHOWN: Final = 2

_Key = TypeVar("_Key", bound=Hashable)
_Place = tuple[str, str]  # name and part of a slot


def with_siblings(weights: Sequence[Weight]) -> list[Weight]:
    """Return weights, marked those that are exchanged or unlike their siblings."""
    exchanged = _exchanged(weights)
    unlike = _unlike(weights) - set(exchanged)
    return [
        _as_exchanged(weight, exchanged[place]) if place in exchanged
        else replace(weight, how=(*weight.how, "unlike")) if place in unlike
        else weight
        for place, weight in enumerate(weights)
    ]  # fmt: skip


def _as_exchanged(weight: Weight, texts: Sequence[str]) -> Weight:
    more = [f"{len(texts) - _MOST_SHOWN} more like these"] if len(texts) > _MOST_SHOWN else []
    text = "; ".join([*texts[:_MOST_SHOWN], *more, *filter(None, [weight.text])])
    return replace(weight, how=("exchanged", *weight.how), text=f"exchanged: {text}", accounted=False)


# -- relations


def relations(weights: Sequence[Weight]) -> list[Hashable]:
    """Return the relation of each weight to its partner, the same for siblings that are laid out alike."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, weight in enumerate(weights):
        groups[tuple(map(template, weight.target)), tuple(map(template, weight.baseline))].append(place)
    found: list[Hashable] = [None] * len(weights)
    for names, places in groups.items():
        moved, parts = _moves([weights[place] for place in places])
        for place, by, part in zip(places, moved, parts, strict=True):
            weight = weights[place]
            found[place] = names, by, part, _within(weight.target), _within(weight.baseline), weight.layout
    return found


def _moves(group: Sequence[Weight]) -> tuple[list[int], list[Hashable]]:
    """Return by how many places each partner is out of order, and which part of it is held."""
    ours, _ = _ordered(group, [weight.target for weight in group], lambda link: link.ours)
    theirs, parts = _ordered(group, [weight.baseline for weight in group], lambda link: link.theirs)
    places = range(len(group))
    by_ours = sorted(places, key=lambda place: (ours[place], theirs[place]))
    by_theirs = sorted(places, key=lambda place: (theirs[place], ours[place]))
    moved = dict(zip(by_ours, places, strict=True))
    for number, place in enumerate(by_theirs):
        moved[place] -= number
    whole = [tuple(link.ours.part for link in weight.links) for weight in group]
    return [moved[place] for place in places], list(zip(parts, whole, strict=True))


def _ordered(
    group: Sequence[Weight], names: Sequence[tuple[str, ...]], side: Callable[[Link], Slot]
) -> tuple[list[tuple[tuple[int, ...], int]], list[Hashable]]:
    """Return what to sort a side's tensors by, and their parts.

    Where many share a tensor, as experts do that are stacked there, they are in the order of their parts.
    """
    heads = [numbers(some[0]) if some else () for some in names]
    if len(set(heads)) == len(heads):
        return [(head, 0) for head in heads], [tuple(side(link).part for link in weight.links) for weight in group]
    starts = [side(weight.links[0]).start if weight.links else 0 for weight in group]
    return list(zip(heads, starts, strict=True)), [tuple(side(link).size for link in weight.links) for weight in group]


def _within(names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of several names, those in common with the first as 0."""
    first = numbers(names[0]) if names else ()
    return tuple(
        tuple(one - other for one, other in zip(numbers(name), first, strict=False)) + numbers(name)[len(first) :]
        for name in names[1:]
    )


def _unlike(weights: Sequence[Weight]) -> set[int]:
    """Return which weights have another relation than most of their siblings, seen from either side."""
    owners = [place for place, weight in enumerate(weights) if weight.sure for _ in weight.links]
    turned = [
        replace(weight, target=(link.theirs.name,), baseline=(link.ours.name,), links=(link.turned,))
        for weight in weights
        if weight.sure
        for link in weight.links
    ]
    return {*_odd(weights), *(owners[place] for place in _odd(turned))}


def _odd(weights: Sequence[Weight]) -> Iterator[int]:
    """Yield which weights have another relation than most that have their name in other layers."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, weight in enumerate(weights):
        if weight.sure and weight.accounted and "merged" not in weight.how:
            slot = () if len(weight.links) > 1 else weight.links[0].ours.part
            groups[tuple(map(template, weight.target)), slot].append(place)
    known = relations(weights)
    for places in groups.values():
        counts = Counter(known[place] for place in places)
        if len(counts) > 1:
            in_order = {known[place] for place in places if _has_own_number(weights[place])}
            same_name = {known[place] for place in places if _has_own_name(weights[place])}
            usual = _usual(counts, in_order, same_name)
            yield from (place for place in places if known[place] != usual)


def _has_own_number(weight: Weight) -> bool:
    return numbers(weight.target[0]) == numbers(weight.baseline[0])


def _has_own_name(weight: Weight) -> bool:
    return weight.target == weight.baseline


def _usual(counts: Counter[_Key], *preferred: set[_Key]) -> _Key | None:
    """Return the most frequent key; of several those that are preferred; None if still several are left."""
    most = {key for key, count in counts.items() if count == max(counts.values())}
    for some in preferred:
        most = most & some or most
    return most.pop() if len(most) == 1 else None


# -- exchanged


def _exchanged(weights: Sequence[Weight]) -> dict[int, list[str]]:
    """Return which weights hold what belongs in others that hold what belongs in them, and what was expected."""
    owners = [(place, link) for place, weight in enumerate(weights) if weight.sure for link in weight.links]
    links = [link for _, link in owners]
    turned = [link.turned for link in links]
    found: dict[int, list[str]] = defaultdict(list)
    known: set[int] = set()
    for expected, are_turned in (
        (_by_module, False), (_by_layer, False), (_by_module, True), (_by_layer, True),
    ):  # fmt: skip
        some = turned if are_turned else links
        for number, (place, reason) in _closed(some, dict(expected(some))).items():
            if number not in known:
                known.add(number)
                found[owners[number][0]].append(_expected_text(some[number], place, reason, are_turned))
    return found


def _expected_text(link: Link, place: _Place, reason: str, is_turned: bool) -> str:
    expected = _slot_text(*place)
    if is_turned:
        return f"{_slot_text(link.ours.name, link.ours.part)} of the baseline was expected in {expected}, {reason}"
    where = f" in {link.ours.part}" if link.ours.part else ""
    return f"{expected} was expected{where}, {reason}"


def _slot_text(name: str, part: str) -> str:
    return f"{name} ({part})" if part else name


def _by_layer(links: Sequence[Link]) -> Iterator[tuple[int, tuple[_Place, str]]]:
    """Yield of links what most other layers have in the same slot, if it is something else."""
    slots: dict[_Place, Counter[_Place]] = defaultdict(Counter)
    mine = [(template(link.ours.name), link.ours.part) for link in links]
    others = [(_relative(link.theirs.name, link.ours.name), link.theirs.part) for link in links]
    for slot, other in zip(mine, others, strict=True):
        slots[slot][other] += 1
    usual = {slot: _most_of(counts, slot) for slot, counts in slots.items()}
    for number, link in enumerate(links):
        expected = usual[mine[number]]
        if expected is not None and expected != others[number]:
            name = filled(expected[0], numbers(link.ours.name))
            yield number, ((name, expected[1]), "as in most other layers")


def _relative(name: str, to: str) -> str:
    """Return a name with ``*`` for the numbers that another name has in the same place."""
    own = numbers(to)
    found = numbers(name)
    return with_places(name, ["*" if own[at : at + 1] == (one,) else str(one) for at, one in enumerate(found)])


def _by_module(links: Sequence[Link]) -> Iterator[tuple[int, tuple[_Place, str]]]:
    """Yield of links what their module's other weights say that they are, if they are something else."""
    votes: dict[_Place, Counter[str]] = defaultdict(Counter)
    for link in links:
        for ours in containers(link.ours.name):
            for theirs in containers(link.theirs.name):
                votes[ours, template(theirs)][theirs] += 1
    usual = {
        (ours, theirs): _most_of(counts, filled(theirs, numbers(ours))) for (ours, theirs), counts in votes.items()
    }
    for number, link in enumerate(links):
        for ours in containers(link.ours.name):
            for theirs in containers(link.theirs.name):
                expected = usual[ours, template(theirs)]
                if expected is not None and expected != theirs:
                    name = f"{expected}{link.theirs.name[len(theirs) :]}"
                    reason = f"as most weights of {ours} are those of {expected}"
                    yield number, ((name, link.theirs.part), reason)


def _most_of(counts: Counter[_Key], likely: _Key | None) -> _Key | None:
    """Return the key that has more than half of the counts; or half of them, if it is the likely one by name."""
    total = sum(counts.values())
    for key, count in counts.most_common(2):
        if 2 * count > total or (2 * count == total and key == likely):
            return key
    return None


def _closed(links: Sequence[Link], expected: dict[int, tuple[_Place, str]]) -> dict[int, tuple[_Place, str]]:
    """Return the links that have what is expected of one another; of a shift, in which an end is left, none."""
    while True:
        held = {(links[number].theirs.name, links[number].theirs.part) for number in expected}
        wanted = {place for place, _ in expected.values()}
        kept = {
            number: found
            for number, found in expected.items()
            if found[0] in held and (links[number].theirs.name, links[number].theirs.part) in wanted
        }
        if len(kept) == len(expected):
            return kept
        expected = kept
