"""Arguments that would end the process, read foreign memory or fill it are refused before the op runs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from aten_dump import ReplayError
from aten_dump.analysis.rerun.argument_checks import (
    INDEX_RULES,
    SHAPE_RULES,
    check_arguments,
    check_indices,
    check_shapes,
)
from aten_dump.analysis.rerun.memory_need import check_made, free_bytes
from tests.checkout import ROOT

A = torch.ops.aten
FAR = 1 << 30


def long(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


X = torch.arange(12.0).reshape(3, 4)
PLANES = torch.rand(1, 2, 4, 4)
CASES: dict[str, tuple[Any, list[Any]]] = {
    "gather": (A.gather.default, [X, 1, long(4).reshape(1, 1)]),
    "gather below": (A.gather.default, [X, 1, long(-1).reshape(1, 1)]),
    "scatter": (A.scatter.value, [X, 0, long(3).reshape(1, 1), 1.0]),
    "index_select": (A.index_select.default, [X, 0, long(3)]),
    "index_add": (A.index_add.default, [X, 0, long(3), torch.ones(1, 4)]),
    "index": (A.index.Tensor, [X, [None, long(4)]]),
    "index after a mask": (A.index.Tensor, [X[None], [torch.ones(1, 3, dtype=torch.bool), long(4, 4, 4)]]),
    "index_put": (A.index_put_.default, [X.clone(), [long(-4)], torch.ones(())]),
    "take": (A.take.default, [X, long(12)]),
    "put": (A.put_.default, [X.clone(), long(-13), torch.ones(1)]),
    "embedding": (A.embedding.default, [X, long(3)]),
    "embedding_dense_backward": (A.embedding_dense_backward.default, [torch.ones(1, 4), long(9), 3, -1, False]),
    "embedding_bag": (A._embedding_bag.default, [X, long(FAR), long(0)]),
    "embedding_bag's offsets": (A._embedding_bag.default, [X, long(1, 1), long(0, FAR)]),
    "embedding_bag's order": (A._embedding_bag.default, [X, long(1, 1), long(0, 2, 1)]),
    "nll_loss": (A.nll_loss_forward.default, [X, long(4, 0, 0), None, 1, -100]),
    "max_pool2d": (
        A.max_pool2d_with_indices_backward.default,
        [torch.ones(1, 2, 2, 2), PLANES, [2, 2], [2, 2], [0, 0], [1, 1], False, torch.full((1, 2, 2, 2), FAR)],
    ),
    "adaptive_max_pool2d": (
        A.adaptive_max_pool2d_backward.default,
        [torch.ones(1, 2, 2, 2), PLANES, torch.full((1, 2, 2, 2), 16)],
    ),
    "max_unpool2d": (A.max_unpool2d.default, [torch.ones(1, 2, 2, 2), torch.full((1, 2, 2, 2), 16), [4, 4]]),
    "ctc_loss": (A._ctc_loss.default, [torch.rand(5, 1, 3), long(7).reshape(1, 1), [5], [1]]),
    "ctc_loss's lengths": (A._ctc_loss.default, [torch.rand(5, 1, 3), long(1).reshape(1, 1), [FAR], [1]]),
    "lu_solve": (A.linalg_lu_solve.default, [torch.eye(2), torch.tensor([1, 77], dtype=torch.int32), torch.eye(2)]),
    "segment_reduce": (
        A.segment_reduce.default,
        [X, "sum"],
    ),
    "fft": (A._fft_c2c.default, [torch.rand(4, dtype=torch.complex64), [FAR], 0, True]),
    "searchsorted": (A.searchsorted.Tensor, [X, X]),
    "coo": (A._convert_indices_from_coo_to_csr.default, [long(5), 3]),
    "sparse": (A._sparse_coo_tensor_with_dims_and_tensors.default, [1, 0, [3], long(5).reshape(1, 1), torch.ones(1)]),
    "pad_packed": (A._pad_packed_sequence.default, [X, long(FAR), False, 0.0, 3]),
    "batch_norm": (A.native_batch_norm.default, [PLANES, None, None, torch.ones(9), torch.ones(9), False, 0.1, 1e-5]),
    "layer_norm_backward": (
        A.native_layer_norm_backward.default,
        [torch.ones(3, 4), X, [4], torch.ones(1, 1), torch.ones(1, 1), None, None, [True, True, True]],
    ),
    "pool_backward": (A._adaptive_avg_pool2d_backward.default, [torch.ones(5, 2, 2, 2), PLANES]),
    "reshape_alias": (A._reshape_alias.default, [X, [1 << 20], [1]]),
    "reshape_alias's overflow": (A._reshape_alias.default, [X, [2], [1 << 61]]),
    "set_": (A.set_.source_Tensor_storage_offset, [X.clone(), X, 0, [1 << 30], [1]]),
    "fused_adamw": (
        A._fused_adamw_.default,
        [[torch.ones(9)], [torch.ones(1)], [torch.ones(9)], [torch.ones(9)], [], [torch.ones(())]],
    ),
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "segment_reduce": {"lengths": long(FAR, 1), "unsafe": True},
    "searchsorted": {"sorter": torch.full((3, 4), 9)},
    "fused_adamw": {
        "lr": 0.1,
        "beta1": 0.9,
        "beta2": 0.9,
        "weight_decay": 0.0,
        "eps": 1e-8,
        "amsgrad": False,
        "maximize": False,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_arguments_are_refused(case: str) -> None:
    op, args = CASES[case]
    with pytest.raises(ReplayError) as error:
        check_arguments(op, args, KEYWORDS.get(case, {}))
    assert "is not run" in str(error.value) or "reach beyond" in str(error.value)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (A.gather.default, [X, -1, long(3).reshape(1, 1)]),
        (A.index.Tensor, [X, [long(-3), long(3)]]),
        (A.index.Tensor, [X, [torch.ones(3, 4, dtype=torch.bool)]]),
        (A.take.default, [X, long(-12, 11)]),
        (A.nll_loss_forward.default, [X, long(-100, 3, 0), None, 1, -100]),
        (A.nll_loss_forward.default, [X[0], long(3)[0], None, 1, -100]),
        (A._embedding_bag.default, [X, long(0, 2), long(0, 0, 2)]),
        (A._ctc_loss.default, [torch.rand(5, 1, 3), long(1, -5).reshape(1, 2), [5], [1]]),
        (A.scatter_add.default, [torch.zeros(()), 0, long(0)[0], torch.ones(())]),
        (A._reshape_alias.default, [X, [2, 2], [4, 1]]),
        (A.native_batch_norm.default, [PLANES, None, None, torch.ones(2), torch.ones(2), True, 0.1, 1e-5]),
        (A.full.default, [[4, 4], 1.0]),
    ],
)
def test_right_arguments_are_not(op: Any, args: list[Any]) -> None:
    check_arguments(op, args, {})
    op(*args)


def test_every_rule_is_of_an_op() -> None:
    """A rule whose name is wrong checks nothing."""
    names = {name.partition("::")[2].partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    for name in (*INDEX_RULES, *SHAPE_RULES):
        assert {name, f"{name}_"} & names, name


def test_what_the_rules_ask_for_are_arguments_of_their_ops() -> None:
    with pytest.raises(ReplayError, match="index has values"):
        check_indices("gather", {"self": X, "dim": 0, "index": long(3)})
    with pytest.raises(ReplayError, match="shape of grad_out"):
        check_shapes("native_batch_norm_backward", {"input": PLANES, "grad_out": X})


HUGE: list[tuple[Any, list[Any], dict[str, Any]]] = [
    (A.full.default, [[1 << 40], 1.0], {}),
    (A.zeros.default, [[1 << 20, 1 << 20]], {}),
    (A.empty.memory_format, [[1 << 40]], {"device": torch.device("cpu")}),
    (A.arange.start_step, [0, 1, 1e-12], {}),
    (A.add.Tensor, [torch.ones(1).expand(1 << 40), torch.ones(())], {}),
    (A.mul.Tensor, [torch.ones(1 << 20, 1), torch.ones(1, 1 << 20)], {}),
    (A.repeat.default, [torch.ones(4), [1 << 38]], {}),
    (A.constant_pad_nd.default, [torch.ones(4), [1 << 40, 0]], {}),
    (A.repeat_interleave.Tensor, [long(1 << 40)], {}),
    (A.bincount.default, [long(1 << 40)], {}),
    (A.resize_.default, [torch.ones(1), [1 << 40]], {}),
    (A.upsample_nearest2d.default, [PLANES, [1 << 20, 1 << 20]], {}),
    (A.randn.generator, [[1 << 40]], {"generator": torch.Generator()}),
]


@pytest.mark.parametrize("number", range(len(HUGE)))
def test_terabytes_are_refused(number: int) -> None:
    op, args, kwargs = HUGE[number]
    state = torch.get_rng_state()
    with pytest.raises(ReplayError, match="GiB are free here: it is not run"):
        check_made(op, args, kwargs)
    assert torch.equal(torch.get_rng_state(), state)
    assert free_bytes() < 1 << 42


_SHAPES = """
import sys, threading, torch
from aten_dump.analysis.rerun import memory_need
from aten_dump.errors import ReplayError
from aten_dump.torch_names import without_compiler

A = torch.ops.aten
x, long = torch.ones(1 << 20, 1), torch.ones(1).expand(1 << 30)
some = [(A.add.Tensor, [x, x.T]), (A.addmm.default, [x, x, x.T]), (A.cat.default, [[long] * 1000])]
refused = 0
for op, args in some:
    try:
        memory_need.check_made(op, args, {})
    except ReplayError:
        refused += 1
assert refused == 3, refused
assert not [name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))]
found = []
with without_compiler():  # who asks meanwhile gets the compiler, in this thread or another
    other = threading.Thread(target=lambda: found.append(__import__("torch._dynamo.config")._dynamo.disable))
    other.start()
    other.join()
assert found[0].__module__.startswith("torch._dynamo"), found
assert torch.compile(torch.exp, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
"""


@pytest.mark.slow
def test_shapes_are_found_without_a_compiler() -> None:
    """torch's own functions of shapes import one: seconds, and a folder of caches."""
    done = subprocess.run([sys.executable, "-c", _SHAPES], capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr


_DIES = """
import torch
torch.ops.aten.max_pool2d_with_indices_backward.default(
    torch.ones(1, 2, 2, 2), torch.rand(1, 2, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False, torch.full((1, 2, 2, 2), 1 << 40)
)
"""


def test_a_kernel_that_does_not_look_ends_the_process() -> None:
    """What the checks are for; where torch learns to look, the rule may go."""
    done = subprocess.run([sys.executable, "-c", _DIES], capture_output=True, cwd=ROOT, timeout=100)
    assert done.returncode < 0 or b"Error" in done.stderr
