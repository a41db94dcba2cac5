"""A rule of `check`: what it looks for, what it needs of a recording, and whether what it finds is certain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from ...dump import Call
from ...store.records import PHASES
from .rank_facts import RankFacts
from .step_facts import StepFacts

Need: TypeAlias = Literal["whole", "aten", "api", "contents", "bytes", "stacks", "parameters", "ranks"]


class Found(NamedTuple):
    """One place where a rule is broken."""

    call: Call
    text: str  # what is wrong there, and what to do


class FoundOnRank(NamedTuple):
    """One place where a rule about ranks is broken."""

    rank: int
    call: int  # id; 0 where no call is to blame
    text: str


@dataclass(frozen=True, slots=True)
class RuleNeeds:
    """A row of the table of rules, without what it does."""

    name: str
    summary: str
    needs: tuple[Need, ...]

    def lacks(self, step: StepFacts) -> str:
        """Return why the rule cannot judge a recorded step, "" if it can."""
        for need in self.needs:
            if need not in step.lacking:
                step.lacking[need] = _LACKS[need](step)
            if step.lacking[need]:
                return step.lacking[need]
        return ""


@dataclass(frozen=True, slots=True)
class Rule(RuleNeeds):
    """A rule about one step of one rank."""

    search: Callable[[StepFacts], Iterator[Found]]
    is_default: bool = True  # what it finds is certain; others run where they are selected


@dataclass(frozen=True, slots=True)
class RankRule(RuleNeeds):
    """A rule about all ranks of a step, which are given in order."""

    search: Callable[[Sequence[RankFacts]], Iterator[FoundOnRank]]
    is_default: bool = True


def _lacks_whole(step: StepFacts) -> str:
    """Return why what is not there may have happened all the same, "" if it has not."""
    if step.rank.state != "complete":
        return (
            f"step {step.rank.step} of rank {step.rank.rank} is not whole: what is missing may hold what is looked for"
        )
    if step.rank.config.get("io") != "all" or any(note.code in _UNSEEN for note in step.rank.notes):
        return "some calls were left out or not seen: record all ops, without selection, trigger or compiled backward"
    failed = (call for call in step.rank.tables.calls if call.error and call.phase != _RECOMPUTE)
    return "a call of the step raised an error" if any(failed) else ""


def _lacks_aten(step: StepFacts) -> str:
    return "" if step.has_kind("aten") else 'it needs aten ops: record with DumpConfig(level="mix")'


def _lacks_api(step: StepFacts) -> str:
    return "" if step.has_kind("api") else 'it needs Python-level calls: record with DumpConfig(level="mix")'


def _lacks_contents(step: StepFacts) -> str:
    has_some = step.rank.config.get("data") in ("statistic", "tensor", "full")
    return "" if has_some else 'it needs statistics or bytes of tensors: record with DumpConfig(data="tensor")'


def _lacks_bytes(step: StepFacts) -> str:
    is_there = step.rank.config.get("data") in ("tensor", "full") and not step.rank.config.get("sample")
    return "" if is_there else 'it needs the bytes of tensors: record with DumpConfig(data="tensor")'


def _lacks_stacks(step: StepFacts) -> str:
    return "" if step.rank.config.get("stacks", True) else "it needs source lines: record with DumpConfig(stacks=True)"


def _lacks_parameters(step: StepFacts) -> str:
    if not step.optimizer_steps or step.held:
        return ""
    return "the dump does not say which parameters optimizers hold: it is of an older version, record again"


def _lacks_ranks(step: StepFacts) -> str:
    return (
        ""
        if step.has_peers or step.rank.header.world_size < 2
        else "it needs the dumps of several ranks: copy them here"
    )


_RECOMPUTE: Final = PHASES.index("recompute")  # checkpointing ends it with an error of its own
# Notes about calls that happened and are not in the recording.
_UNSEEN: Final = frozenset(
    (
        *("selection", "trigger", "traced", "compiled_autograd", "other_threads", "unseen", "exception"),
        *("packaged_model", "device_graph", "graph_replay"),
    )
)
_LACKS: Final[dict[Need, Callable[[StepFacts], str]]] = {
    "whole": _lacks_whole,
    "aten": _lacks_aten,
    "api": _lacks_api,
    "contents": _lacks_contents,
    "bytes": _lacks_bytes,
    "stacks": _lacks_stacks,
    "parameters": _lacks_parameters,
    "ranks": _lacks_ranks,
}
