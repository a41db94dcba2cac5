"""Files and tables of MindSpore, op by op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aten_dump import RankDump, open_dump
from aten_dump.other_tools.mindspore.mindspore_dump import find, read

HEAD = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Count,L2Norm Value"


class Net:
    """The folder of one iteration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "rank_0" / "net" / "0" / "0"
        self.folder.mkdir(parents=True)

    def file(self, name: str, array: Any = (1.0, 2.0)) -> None:
        np.save(self.folder / f"{name}.npy", np.asarray(array, dtype=np.float32))

    def table(self, *rows: str) -> None:
        (self.folder / "statistic.csv").write_text("\n".join([HEAD, *rows]) + "\n")

    def order(self, *names: str) -> None:
        folder = self.root / "rank_0" / "execution_order"
        folder.mkdir()
        text = "\n".join(["NodeExecutionOrder-FullNameWithScope", *names])
        (folder / "ms_execution_order_graph_0.csv").write_text(text)

    def opened(self) -> RankDump:
        return open_dump(self.root).step(0).rank(0)

    def names(self) -> list[str]:
        return [call.name.removeprefix("MindSpore.") for call in self.opened().calls]


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path)


# -- where they are ------------------------------------------------------------------------------------------------


def test_iterations_of_ranks(tmp_path: Path) -> None:
    for rank, iteration in ((0, 0), (0, 2), (5, 2)):
        folder = tmp_path / f"rank_{rank}" / "net" / "1" / str(iteration)
        folder.mkdir(parents=True)
        (folder / "statistic.csv").write_text(HEAD)
    (tmp_path / "rank_0" / "net" / "1" / "3").mkdir()
    (tmp_path / "rank_0" / "net" / "1" / "x").mkdir()
    found = find(tmp_path)
    assert {step: sorted(ranks) for step, ranks in found.items()} == {0: [0], 2: [0, 5]}
    assert {step: sorted(ranks) for step, ranks in find(tmp_path / "rank_5").items()} == {2: [5]}
    own = find(tmp_path / "rank_0" / "net" / "1" / "2")
    assert {step: list(ranks) for step, ranks in own.items()} == {2: [0]}
    assert find(tmp_path / "rank_0" / "net" / "1" / "3") == {} == find(tmp_path / "rank_0" / "net")


def test_files_alone_make_an_iteration(tmp_path: Path) -> None:
    np.save(tmp_path / "Add.Default_Add-op1.0.0.5.output.0.DefaultFormat.npy", np.zeros(2))
    assert find(tmp_path) == {0: {0: tmp_path}}
    (tmp_path / "other").mkdir()
    np.save(tmp_path / "other" / "array.npy", np.zeros(2))
    assert find(tmp_path / "other") == {}


# -- calls ---------------------------------------------------------------------------------------------------------


def test_files_become_calls_in_the_order_of_their_times(net: Net) -> None:
    net.file("Mul.Default_Mul-op2.0.0.20.output.0.DefaultFormat")
    net.file("Add.Default_Add-op1.0.0.10.input.1.DefaultFormat", [5.0])
    net.file("Add.Default_Add-op1.0.0.11.output.0.DefaultFormat")
    net.file("Add.Default_Add-op3.0.0.30.output.0.DefaultFormat")
    assert net.names() == ["Add.0.forward", "Mul.0.forward", "Add.1.forward"]
    add = net.opened()["MindSpore.Add.0.forward"]
    assert add.op == "mindspore::Add" and add.inputs[0][0] is None and add.inputs[0][1].tensor().tolist() == [5.0]
    assert add.outputs.tensor().tolist() == [1.0, 2.0] and add.outputs.dtype == torch.float32


def test_what_comes_twice_is_of_the_next_run(net: Net) -> None:
    for time in (10, 20, 30):
        net.file(f"Add.Default_Add-op1.0.0.{time}.output.0.DefaultFormat", [float(time)])
    assert net.names() == ["Add.0.forward", "Add.1.forward", "Add.2.forward"]
    held = [call.outputs.tensor().item() for call in net.opened().calls]
    assert held == [10.0, 20.0, 30.0]


def test_the_execution_order_has_the_last_word_and_the_scopes(net: Net) -> None:
    net.file("Add.Default_network-WithLossCell_fc-Dense_Add-op1.0.0.30.output.0.DefaultFormat")
    net.file("Mul.Gradients_Default_network-WithLossCell_fc-Dense_gradMul_Mul-op2.0.0.20.output.0.DefaultFormat")
    net.file("Sub.Default_optimizer-SGD_Sub-op3.0.0.10.output.0.DefaultFormat")
    net.file("Div.Default_Div-op4.0.0.1.output.0.DefaultFormat")
    net.order(
        "Default/network-WithLossCell/fc-Dense/Add-op1,",
        "Gradients/Default/network-WithLossCell/fc-Dense/gradMul/Mul-op2",
        "Default/optimizer-SGD/Sub-op3",
    )
    assert net.names() == ["Add.0.forward", "Mul.0.backward", "Sub.0.optimizer", "Div.0.forward"], "unknown ones last"
    rank = net.opened()
    assert rank["MindSpore.Add.0.forward"].module == "network.fc"
    assert rank["MindSpore.Mul.0.backward"].module == "network.fc.gradMul"


def test_several_results_and_none(net: Net) -> None:
    net.file("Split.Default_Split-op1.0.0.10.output.0.DefaultFormat")
    net.file("Split.Default_Split-op1.0.0.10.output.2.DefaultFormat")
    net.file("Print.Default_Print-op2.0.0.20.input.0.DefaultFormat")
    split, printed = net.opened().calls
    assert [item is None for item in split.outputs] == [False, True, False]
    assert not printed.outputs


def test_names_of_our_own_exports_are_what_they_were(net: Net) -> None:
    net.file("add-Tensor.Default_fc_Aten-add-3-backward.0.0.10.output.0.DefaultFormat.float32")
    (call,) = net.opened().calls
    assert (call.name, call.op, call.kind) == ("Aten.add.3.backward", "aten::add.Tensor", "aten")


def test_a_name_too_long_for_a_file_is_in_the_mapping(net: Net) -> None:
    net.file("abc123", [7.0])
    net.file("def456", [8.0])
    (net.folder / "mapping.csv").write_text(
        "abc123.npy,Add.Default_Add-op1.0.0.10.output.0.DefaultFormat.npy\n"
        "def456.npy,Mul.Default_Mul-op2.0.0.20.output.0.DefaultFormat\nodd line\n"
    )
    assert net.names() == ["Add.0.forward", "Mul.0.forward"]
    assert [call.outputs.tensor().item() for call in net.opened().calls] == [7.0, 8.0]


# -- statistics ----------------------------------------------------------------------------------------------------


def test_rows_have_dtype_shape_and_numbers(net: Net) -> None:
    net.table('Add,Default_Add-op1,0,0,10,Output,0,24,BFloat16,"(2,3)",5,-1.5,6,null', "")
    (call,) = net.opened().calls
    value = call.outputs
    assert (value.dtype, tuple(value.shape), value.has_data) == (torch.bfloat16, (2, 3), False)
    assert (value.stats.max, value.stats.min, value.stats.count, value.stats.l2norm) == (5.0, -1.5, 6, None)
    assert value.stats.mean is None, "no such column"


def test_rows_and_files_of_one_op_are_one_call(net: Net) -> None:
    net.table('Add,Default_Add-op1,0,0,10,output,0,8,float32,"(2,)",5,1,2,3')
    net.file("Add.Default_Add-op1.0.0.12.output.0.DefaultFormat")
    (call,) = net.opened().calls
    assert call.outputs.tensor().tolist() == [1.0, 2.0] and call.outputs.stats.max == 5.0


@pytest.mark.parametrize(
    ("has_row", "has_file", "data"), [(True, True, "full"), (False, True, "tensor"), (True, False, "statistic")]
)
def test_the_data_level_is_what_is_there(net: Net, has_row: bool, has_file: bool, data: str) -> None:
    if has_row:
        net.table('Add,Default_Add-op1,0,0,10,output,0,8,float32,"(2,)",5,1,2,3')
    if has_file:
        net.file("Add.Default_Add-op1.0.0.12.output.0.DefaultFormat")
    assert net.opened().config["data"] == data


def test_the_name_may_say_the_dtype(net: Net) -> None:
    net.file("Add.Default_Add-op1.0.0.12.output.0.DefaultFormat.bfloat16")
    (call,) = net.opened().calls
    assert call.outputs.dtype == torch.bfloat16 and call.outputs.tensor().dtype == torch.bfloat16


def test_all_graphs_of_an_iteration_are_one_step(net: Net) -> None:
    net.file("Add.Default_Add-op1.0.0.10.output.0.DefaultFormat")
    other = net.root / "rank_0" / "net" / "1" / "0"
    other.mkdir(parents=True)
    np.save(other / "Mul.Default_Mul-op1.0.0.5.output.0.DefaultFormat.npy", np.zeros(1, np.float32))
    assert net.names() == ["Mul.0.forward", "Add.0.forward"]
    made = read(net.folder, 0, 0, 1)
    assert made.calls == 2 and len(made.loads) == 2
