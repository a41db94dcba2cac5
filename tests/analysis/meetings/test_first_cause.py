"""Of the causes that ranks have, that is first which none of the others can have reached."""

from __future__ import annotations

from aten_dump.analysis.evidence.findings import Finding, Leaning, Part, Place, RankEvidence, Row
from aten_dump.analysis.meetings.first_cause import Meetings, brought_by, first_cause, unfounded

MESSAGE = ("0", (1, 0), "0")


def rank(number: int, at: int | None, *meets: Part, step: int = 0, leans: tuple[Leaning, ...] = ()) -> RankEvidence:
    """Return the evidence of a rank with a finding at a call."""
    place = Place(step, number, at or 0, f"call {at}", "aten::mul", "aten", "forward", "", "", "", "")
    row = Row(place, place, "order", "output.0", "different")
    findings = () if at is None else (Finding("op", row, "it is wrong", "", (at, 1)),)
    return RankEvidence(
        "t",
        "b",
        (step, step),
        (number, number),
        "tensor",
        {},
        (9, 9),
        {},
        (),
        findings,
        {},
        {},
        meets=meets,
        leans=leans,
    )


def named(*ranks: RankEvidence) -> tuple[int, int] | None:
    found = first_cause(ranks)
    return None if found is None else (found[0].ranks[0], found[1].order[0])


def received(call: int) -> Part:
    return Part(MESSAGE, 0, call, sends=False, receives=True)


def sent(call: int) -> Part:
    return Part(MESSAGE, 0, call, sends=True, receives=False)


def test_who_receives_yields_to_who_sends() -> None:
    assert named(rank(0, 5, received(5)), rank(1, 40, sent(50))) == (1, 40)
    assert named(rank(0, 9, received(5)), rank(1, 40, sent(50))) == (1, 40), "what is made of it too"
    assert named(rank(0, 5, received(5)), rank(1, 60, sent(50))) == (0, 5), "it was sent before"
    assert named(rank(0, 3, received(5)), rank(1, 40, sent(50))) == (0, 3), "it had not come yet"
    assert named(rank(0, 5), rank(1, 40)) == (0, 5), "they never met"


def test_an_error_goes_on_from_rank_to_rank() -> None:
    passed = Part(("0", (0, 2), "0"), 0, 8, sends=True, receives=False)
    came = Part(("0", (0, 2), "0"), 0, 2, sends=False, receives=True)
    meetings = Meetings({0: (received(5), passed), 1: (sent(50),), 2: (came,)})
    assert meetings.reached_from({1: 40}) == {0: 5, 2: 2}
    assert meetings.reached_from({2: 1}) == {}
    assert named(rank(2, 2, came), rank(0, None, received(5), passed), rank(1, 40, sent(50))) == (1, 40)


def test_a_rank_without_a_cause_is_told_what_was_brought_to_it() -> None:
    ranks = [rank(0, None, received(5)), rank(1, 40, sent(50)), rank(2, None), rank(0, None, received(5), step=1)]
    first = first_cause(ranks)
    assert first is not None and brought_by(first, ranks) == {0: 5}
    assert brought_by((ranks[1], ranks[1].findings[0]), [rank(0, 7, received(5)), ranks[1]]) == {}, "it has its own"
    early = rank(1, 60, sent(50))
    assert brought_by((early, early.findings[0]), [ranks[0], early]) == {}, "it was sent before"


def test_of_causes_on_all_ranks_those_count_that_no_other_one_reaches() -> None:
    """All take part in one all-reduce, at calls of other numbers."""

    def reduced(at: int) -> Part:
        return Part(("0", (0, 1, 2), ""), 0, at, sends=True, receives=True)

    assert named(rank(0, 20, reduced(10)), rank(1, 50, reduced(60)), rank(2, 90, reduced(80))) == (1, 50)
    assert named(rank(0, 20, reduced(10)), rank(1, 70, reduced(60)), rank(2, 90, reduced(80))) == (0, 20), "met before"
    both = rank(0, 9, reduced(10)), rank(1, 50, reduced(60)), rank(2, 90, reduced(80))
    assert named(*both) == (0, 9)


def test_a_thousand_ranks_with_a_cause_each_are_told_apart_soon() -> None:
    """Each pair of causes looked at by itself would take a day."""
    everyone = tuple(range(1000))
    meets = [Part(("0", everyone, ""), k, 10 * k + 10, sends=True, receives=True) for k in range(30)]
    ranks = [rank(number, 105 if number else 95, *meets) for number in everyone]
    first = first_cause(ranks)
    assert first is not None and first[0].ranks == (0, 0)


def test_the_first_step_comes_first_and_none_is_none() -> None:
    assert named(rank(0, 7, step=1), rank(1, 90, step=0)) == (1, 90)
    assert first_cause([rank(0, None)]) is None


def test_what_rests_on_ranks_that_nobody_compared_is_told_where_noise_does_not_explain_it() -> None:
    leaning, small = Leaning("call 3", 3, (1,), 0.02, 1e-6), Leaning("call 3", 3, (1,), 1e-7, 1e-6)
    alone = rank(0, None, leans=(leaning,))
    assert [found[1] for found in unfounded([alone])] == [leaning]
    assert not list(unfounded([alone, rank(1, None)]))
    assert not list(unfounded([rank(0, None, leans=(small,))]))
