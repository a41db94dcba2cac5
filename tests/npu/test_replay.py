"""`replay` on the CPU and on the device, of dumps of either. Run with `make test-npu`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from aten_dump import DumpConfig, DumpMode, ReplayError, open_dump, replay
from aten_dump.cli.main import main
from tests.models import build, train_step
from tests.npu.trust.test_fused_kernels import CASES
from tests.sampling import every_second

NOT_A_COMPUTATION = {
    "it returns undefined memory: there is nothing to compare",
    "profiler ops compute nothing that is recorded",
}
OTHER_NUMBERS = "it draws random numbers on npu: replay it there, cpu draws others"


@pytest.fixture(scope="module", params=["cpu", "npu"])
def dump(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param) / "dump"
    with torch.device(request.param):
        program = build("gpt2", "adamw_foreach")
        train_step(program)
        with DumpMode(DumpConfig(path=path, data="tensor"), model=program.model):
            train_step(program)
    return path


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("dtype", every_second([torch.float64, None]), ids=["float64", "recorded"])
def test_each_side_is_replayed_on_either(dump: Path, device: str, dtype: torch.dtype | None) -> None:
    rank = open_dump(dump).step(0).rank(0)
    recorded_on = str(rank["Functional.embedding.0.forward"].input_values()[0][1].device).partition(":")[0]
    found = replay(dump, device=device, dtype=dtype)
    left = set(found.reasons) - NOT_A_COMPUTATION
    if device == recorded_on:
        assert left == set() and found.unequal == ()
    else:
        assert {reason.partition(":")[0] for reason in left} <= {f"it draws random numbers on {recorded_on}"}
    assert found.suspects == ()
    assert len(found.ops) > 350
    if dtype is not None:
        assert {op.op for op in found.ops if op.reference != "float64"} <= {"aten::randint", "aten::randint.low"}
    assert any(op.op == "aten::matmul_backward" for op in found.ops) == (recorded_on == "npu")


def test_the_command(dump: Path) -> None:
    result = CliRunner().invoke(main, ["replay", str(dump), "--device", "npu", "--limit", "3"])
    assert result.exit_code == 0, result.output


def test_there_is_no_third_device(dump: Path) -> None:
    with pytest.raises(ReplayError, match="npu:7: there are 2 here, npu:0 to npu:1"):
        replay(dump, device="npu:7")


def test_fused_attention_that_drops_is_replayed_with_the_same_mask(tmp_path: Path) -> None:
    """Its schema does not say that it draws random numbers."""
    torch.npu.manual_seed(3)
    q = torch.randn(1, 2, 16, 8).to("npu")
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="tensor")):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    (call,) = [call for call in open_dump(tmp_path / "dump").step(0).rank(0).calls if call.kind == "aten"]
    assert (
        call.op.startswith("npu::npu_fusion_attention")
        and call.random_state is not None
        and call.random_state[0] == "npu:0"
    )
    found = replay(tmp_path / "dump", device="npu", dtype=None)
    assert found.unequal == () and [op.op for op in found.ops] == [call.op]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_fused_kernels_and_their_gradients_are_run_again_on_the_cpu(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    fused, _, inputs = CASES[name]()
    leaves = [x.to(dtype).npu().requires_grad_() for x in inputs]
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="tensor")):
        fused(*leaves).sum().backward()
    found = replay(tmp_path / "dump", device="cpu")
    assert set(found.reasons) <= NOT_A_COMPUTATION and found.suspects == ()
    assert {op.reference for op in found.ops} == {"float64"}


def test_a_mixture_of_experts_is_run_again_on_the_cpu(tmp_path: Path) -> None:
    npu = torch.ops.npu
    x, weights = torch.randn(6, 8).npu().requires_grad_(), torch.randn(4, 8, 8).npu()
    with DumpMode(DumpConfig(path=tmp_path / "dump", data="tensor")):
        probs, routed, _ = npu.npu_moe_gating_top_k_softmax(torch.randn(6, 4).npu(), k=2)
        permuted, places = npu.npu_moe_token_permute(x, routed)
        with torch.no_grad():
            made = npu.npu_grouped_matmul(
                [permuted], [weights], group_list=torch.tensor([3, 6, 9, 12]).npu(), group_type=0, split_item=3
            )[0]
        made = made + permuted
        npu.npu_moe_token_unpermute(made, places, probs=probs).sum().backward()
    found = replay(tmp_path / "dump", device="cpu", dtype=torch.float64)
    left = {reason.partition(":")[0] for reason in set(found.reasons) - NOT_A_COMPUTATION}
    assert left <= {"it draws random numbers on cpu"} and found.suspects == ()
    assert {op.op for op in found.ops} >= {
        f"npu::{name}"
        for name in (
            "npu_moe_gating_top_k_softmax", "npu_moe_token_permute", "npu_moe_token_permute_grad_v2", "npu_grouped_matmul",
            "_npu_moe_token_unpermute", "npu_moe_token_unpermute_grad_v2",
        )
    }  # fmt: skip
