"""Programs that stand further from each other: a mixture of experts, and a Llama under autocast with few key heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from aten_dump import DumpConfig, DumpMode, compare
from tests.models import MODELS, VOCABULARY
from tests.npu.migration.experts import Mixture
from tests.npu.simulator.kernels.registering import Kernel, replaced


def trained(make: Callable[[], Any], device: str, path: Path, half: torch.dtype | None = None) -> Path:
    """Train for two steps, of two batches each."""
    torch.manual_seed(0)
    model = make().train().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with DumpMode(DumpConfig(path=path, data="full"), model=model) as dump:
        for step in range(2):
            optimizer.zero_grad()
            for batch in range(2):
                generator = torch.Generator().manual_seed(2 * step + batch)
                tokens = torch.randint(0, VOCABULARY, (2, 12), generator=generator, device="cpu").to(device)
                with torch.autocast(device, half or torch.bfloat16, enabled=half is not None):
                    found = model(tokens)
                    logits = getattr(found, "logits", found)
                    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
                loss.backward()
            optimizer.step()
            dump.step()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("half", [None, torch.bfloat16, torch.float16], ids=str)
def test_a_llama_with_few_key_heads_agrees(tmp_path: Path, half: torch.dtype | None) -> None:
    make = MODELS["llama"][0]
    found = compare(trained(make, "npu", tmp_path / "npu", half), trained(make, "cpu", tmp_path / "cpu", half))
    assert found.verdict == "within", found.answer()


def scaled(result: int) -> Callable[[Kernel], Kernel]:
    """Return what makes one result of a kernel 2% too large."""

    def fault(right: Kernel) -> Kernel:
        def wrong(*args: Any, **options: Any) -> Any:
            found = right(*args, **options)
            if isinstance(found, torch.Tensor):
                return found * 1.02
            return type(found)(x * 1.02 if number == result else x for number, x in enumerate(found))

        return wrong

    return fault


FAULTS = [
    ("npu_moe_token_permute", 0, "forward", "experts"),
    ("npu_grouped_matmul", 0, "forward", "experts"),
    ("npu_swiglu", 0, "forward", "experts"),
    ("_npu_moe_token_unpermute", 0, "forward", "experts"),
    ("npu_moe_token_unpermute_grad_v2", 1, "backward", "experts"),
    ("npu_swiglu_backward", 0, "backward", "experts"),
    ("npu_moe_token_permute_grad_v2", 0, "backward", "experts"),
    ("npu_fusion_attention", 0, "forward", "attention"),
    ("npu_fusion_attention_grad", 1, "backward", "attention"),
]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(Mixture, "cpu", tmp_path_factory.mktemp("cpu") / "dump")


def test_a_mixture_of_experts_agrees(tmp_path: Path, baseline: Path) -> None:
    found = compare(trained(Mixture, "npu", tmp_path / "npu"), baseline)
    assert found.verdict == "within", found.answer()


@pytest.mark.parametrize(
    "fault",
    [fault if fault[0] == "npu_swiglu" else pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS],
    ids=[fault[0] for fault in FAULTS],
)
def test_a_wrong_kernel_of_it_is_named(tmp_path: Path, baseline: Path, fault: tuple[str, int, str, str]) -> None:
    kernel, result, phase, module = fault
    with replaced(f"npu::{kernel}", scaled(result)):
        target = trained(Mixture, "npu", tmp_path / "npu")
    found = compare(target, baseline)
    assert found.verdict == "different" and found.first is not None
    place = found.first[1].row.place
    assert (place.op, place.phase, place.module) == (f"npu::{kernel}", phase, module), found.answer()
