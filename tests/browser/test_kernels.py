"""A kernel of compiled code opens into the aten ops that it computes, each with its line of the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from aten_dump import Call, DumpConfig, DumpMode, open_dump
from aten_dump.capture.torch_internals.compiler import compiles_alike_under_modes
from tests.browser.opened import Opened

pytestmark = [
    pytest.mark.skipif(" " in torch.__file__, reason="inductor does not quote the path of torch's C++ headers"),
    pytest.mark.skipif(not compiles_alike_under_modes, reason="this torch compiles otherwise under a mode"),
]
Report = Callable[..., Path]
Open = Callable[..., Opened]


class Model(nn.Module):
    """Two lines of ops that inductor makes one kernel of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x)) * 2
        return (h + x).softmax(-1)


@pytest.fixture(scope="module")
def compiled(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "dump"
    torch._dynamo.reset()
    model = Model()
    with DumpMode(DumpConfig(path=path, data="tensor", compile="kernels"), model=model):
        torch.compile(model)(torch.randn(4, 8)).square().sum().backward()
    return path


def _kernel(path: Path) -> Call:
    return next(call for call in open_dump(path).rank(0, 0).calls if call.kernel is not None and "tanh" in call.op)


def test_a_kernel_opens_into_its_ops_and_source_lines(compiled: Path, report_of: Report, open_report: Open) -> None:
    call = _kernel(compiled)
    kernel = call.kernel
    assert kernel is not None
    report = open_report(report_of(compiled), f"#call={call.name}")
    assert report.text("h1") == call.name
    assert report.text("details.computed summary") == f"Computes {len(kernel.nodes)} nodes of graph {kernel.graph}"
    rows = [row.split("\t") for row in report.texts("details.computed tbody tr")]
    assert [row[0] for row in rows] == [node.name for node in kernel.nodes]
    assert [row[1].partition("(")[0] for row in rows] == [node.op for node in kernel.nodes]
    assert {"aten::tanh", "aten::exp", "aten::div.Tensor"} <= {row[1].partition("(")[0] for row in rows}
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    for text, op in (("torch.tanh(", "aten::tanh"), (".softmax(-1)", "aten::exp")):
        at = next(number for number, line in enumerate(lines, 1) if text in line)  # the model's line is the first
        assert [row for row in rows if row[1].startswith(op) and f"test_kernels.py:{at}" in row[3]], (op, at, rows)
    report.page.click("details.computed summary")
    assert not report.page.locator("details.computed table").is_visible()
    report.page.click("details.computed summary")
    assert report.page.locator("details.computed table").is_visible()


def test_a_kernel_is_found_in_the_table_and_opened_from_there(
    compiled: Path, report_of: Report, open_report: Open
) -> None:
    call = _kernel(compiled)
    report = open_report(report_of(compiled), f"#view=calls&call={call.name}")
    report.page.wait_for_selector(".row[aria-selected=true]")
    report.page.focus("[role=treegrid]")
    report.press("Enter")
    report.wait_for_address("view=call&")
    assert report.text("details.computed summary").startswith("Computes ")
    backward = next(one for one in call.backward if one.kernel is not None)
    report.press("b")
    report.wait_for_address(f"call={backward.name}")
    assert report.text("details.computed summary").startswith("Computes ")
