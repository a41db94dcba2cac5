"""Synthetic Llama traces with a known alignment: ops inserted, deleted, fused, recomputed, modules renamed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from aten_dump.analysis.pairing.alignment import CallKey

BATCH, SEQUENCE, HIDDEN, INNER, VOCABULARY = 4, 128, 256, 688, 1000
_X = (BATCH, SEQUENCE, HIDDEN)
_FLAT = (BATCH * SEQUENCE, HIDDEN)
_HEADS = (BATCH, 8, SEQUENCE, 32)
_SCORES = (BATCH, 8, SEQUENCE, SEQUENCE)
_UP = (BATCH, SEQUENCE, INNER)

_NORM = [("aten::pow", _X), ("aten::mean", (BATCH, SEQUENCE, 1)), ("aten::add", (BATCH, SEQUENCE, 1)),
         ("aten::rsqrt", (BATCH, SEQUENCE, 1)), ("aten::mul", _X), ("aten::mul", _X)]  # fmt: skip


def _linear(shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return [
        ("aten::t", (HIDDEN, shape[-1])),
        ("aten::view", _FLAT),
        ("aten::mm", (BATCH * SEQUENCE, shape[-1])),
        ("aten::view", shape),
    ]


_ROPE = [("aten::mul", _HEADS), ("aten::slice", (*_HEADS[:-1], 16)), ("aten::slice", (*_HEADS[:-1], 16)), ("aten::neg", (*_HEADS[:-1], 16)),
         ("aten::cat", _HEADS), ("aten::mul", _HEADS), ("aten::add", _HEADS)]  # fmt: skip


@dataclass(frozen=True)
class Traced:
    key: CallKey
    identity: int  # what it truly is; 0 for an inserted call


def _layer(number: int) -> list[tuple[str, str, tuple[int, ...]]]:
    name = f"model.layers.{number}"
    found = [(f"{name}.input_layernorm", op, shape) for op, shape in _NORM]
    for proj in ("q_proj", "k_proj", "v_proj"):
        found += [(f"{name}.self_attn.{proj}", op, shape) for op, shape in _linear(_X)]
        found += [
            (f"{name}.self_attn", "aten::view", (BATCH, SEQUENCE, 8, 32)),
            (f"{name}.self_attn", "aten::transpose", _HEADS),
        ]
    found += [(f"{name}.self_attn", op, shape) for op, shape in _ROPE * 2]
    found += [(f"{name}.self_attn", op, _SCORES) for op in ("aten::bmm", "aten::div", "aten::add", "aten::_softmax")]
    found += [
        (f"{name}.self_attn", op, shape)
        for op, shape in (
            ("aten::bmm", _HEADS),
            ("aten::transpose", _HEADS),
            ("aten::clone", _HEADS),
            ("aten::view", _X),
        )
    ]
    found += [(f"{name}.self_attn.o_proj", op, shape) for op, shape in _linear(_X)] + [(name, "aten::add", _X)]
    found += [(f"{name}.post_attention_layernorm", op, shape) for op, shape in _NORM]
    for proj in ("gate_proj", "up_proj"):
        found += [(f"{name}.mlp.{proj}", op, shape) for op, shape in _linear(_UP)]
    found += [(f"{name}.mlp.act", "aten::silu", _UP), (f"{name}.mlp", "aten::mul", _UP)]
    return found + [(f"{name}.mlp.down_proj", op, shape) for op, shape in _linear(_X)] + [(name, "aten::add", _X)]


def trace(layers: int) -> list[Traced]:
    """Forward and backward of a model; backward runs the mirrored ops, two for each matrix product."""
    forward = [("model.embed", "aten::embedding", _X)]
    for number in range(layers):
        forward += _layer(number)
    forward += [("lm_head", op, shape) for op, shape in _linear((BATCH, SEQUENCE, VOCABULARY))] + [
        ("", "aten::nll_loss", ())
    ]
    calls = [("forward", *call) for call in forward]
    for module, op, shape in reversed(forward):
        calls.append(("backward", module, op if op in ("aten::t", "aten::view") else op + "_backward", shape))
        if op in ("aten::mm", "aten::bmm", "aten::mul"):
            calls.append(("backward", module, op, shape))
    return [Traced(CallKey(phase, module, op, (shape,)), n) for n, (phase, module, op, shape) in enumerate(calls, 1)]


def changed(calls: list[Traced], seed: int, inserted: float = 0.03, deleted: float = 0.01) -> list[Traced]:
    chance = random.Random(seed)
    found = []
    for call in calls:
        if chance.random() < deleted:
            continue
        found.append(call)
        if chance.random() < inserted:
            op, shape = chance.choice(
                (
                    ("aten::clone", call.key.shape),
                    ("aten::_to_copy", call.key.shape),
                    ("aten::view", call.key.shape),
                    (call.key.op, call.key.shape),
                )
            )
            found.append(Traced(call.key._replace(op=op, shape=shape), 0))
    return found


def renamed(calls: list[Traced]) -> list[Traced]:
    def rename(module: str) -> str:
        return (
            module.replace("model.layers", "transformer.h")
            .replace("self_attn", "attention")
            .replace("mlp", "feed_forward")
        )

    return [Traced(call.key._replace(module=rename(call.key.module)), call.identity) for call in calls]


def fused(calls: list[Traced]) -> list[Traced]:
    """Each norm's six ops become one; so do the five around the softmax."""
    found: list[Traced] = []
    for call in calls:
        is_norm = call.key.module.endswith("layernorm")
        is_sdpa = call.key.phase == "forward" and call.key.shape == (_SCORES,)
        if not is_norm and not is_sdpa:
            found.append(call)
            continue
        op = "npu::rms_norm" if is_norm else "npu::fusion_attention"
        if not found or found[-1].key.module != call.key.module or found[-1].key.op != op:
            found.append(Traced(call.key._replace(op=op, shape=(_X,)), 0))
    return found


def recomputed(calls: list[Traced]) -> list[Traced]:
    """Before a layer's backward its forward runs again."""
    found: list[Traced] = []
    forward: dict[str, list[Traced]] = {}
    done: set[str] = set()
    for call in calls:
        layer = ".".join(call.key.module.split(".")[:3])
        if call.key.phase == "forward":
            forward.setdefault(layer, []).append(call)
        elif layer.startswith("model.layers") and layer not in done:
            done.add(layer)
            found += [Traced(c.key._replace(phase="recompute"), 0) for c in forward[layer]]
        found.append(call)
    return found


CASES: dict[str, Callable[[list[Traced]], list[Traced]]] = {
    "inserted and deleted": lambda calls: changed(calls, 1),
    "renamed": lambda calls: renamed(changed(calls, 2)),
    "fused": lambda calls: fused(changed(calls, 3)),
    "recomputed": lambda calls: recomputed(changed(calls, 4)),
    "all": lambda calls: recomputed(fused(renamed(changed(calls, 5)))),
}


def score(target: list[Traced], baseline: list[Traced], pairs: list[tuple[int, int]]) -> tuple[float, float]:
    """Return recall and the share of wrong pairs; an inserted twin of a call counts as wrong."""
    present = {call.identity for call in target if call.identity} & {
        call.identity for call in baseline if call.identity
    }
    right = sum(target[i].identity == baseline[j].identity and target[i].identity != 0 for i, j in pairs)
    wrong = len(pairs) - right
    return right / len(present), wrong / len(pairs)
