"""One hand-made dump of a linear layer, an in-place relu and their backward; used by the tests of reader and CLI."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from aten_dump.store import records as r
from tests.dump.building import Builder, value

STACK = (
    ("/venv/torch/nn/functional.py", 10, "linear", False),
    ("/home/me/train.py", 42, "forward", True),
    ("/home/me/train.py", 7, "main", True),
)


@dataclass
class Scenario:
    builder: Builder
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)  # value ids

    def put(self, name: str, tensor: torch.Tensor, **options: Any) -> list[int]:
        """Record a value and return its tree."""
        self.tensors[name] = tensor
        self.ids[name] = self.builder.value(tensor, **options)
        return value(self.ids[name])


def linear_step(root: Path, *, step: int = 0, rank: int = 0, config: dict[str, Any] | None = None) -> Scenario:
    """Record one step; the caller calls ``scenario.builder.finish()``.

    Calls: 1 Module.net.fc.0.forward > 2 Functional.linear.0.forward > 3 Aten.t.0.forward, 4 Aten.addmm.0.forward;
    5 Functional.relu_.0.forward > 6 Aten.relu_.0.forward; 7 Node.AddmmBackward0.0.backward >
    8 Aten.mm.0.backward; 9 Functional.linear.0.backward; 10 Aten._foreach_add_.0.optimizer.
    """
    torch.manual_seed(0)
    b = Builder(root, step, rank, config)
    s = Scenario(b)
    store = None if (config or {}).get("data", "full") not in ("tensor", "full") else "strided"
    weight = torch.randn(3, 4).requires_grad_()
    x, bias = s.put("x", torch.randn(2, 4), store=store), s.put("bias", torch.randn(3), store=store)
    w = s.put("w", weight, store=store)
    wt = s.put("wt", weight.detach().t(), store=store)
    with torch.no_grad():
        out = torch.addmm(s.tensors["bias"], s.tensors["x"], weight.t(), alpha=2)
    y0 = s.put("y0", out.clone(), store=store)
    # The same storage after relu_: version 1, other bytes.
    after = s.tensors["y0"].clone().relu_()
    y1_id = b.next("value")
    y0_record = next(record for record in b.records if isinstance(record, r.Value) and record.id == s.ids["y0"])
    b.emit(y0_record._replace(id=y1_id, version=1))
    if store:
        b.emit(r.Data(r.DATA, y1_id, b.blob(bytes(after.untyped_storage())), 0, 0))
    s.tensors["y1"], s.ids["y1"] = after, y1_id
    _forward(s, x, bias, w, wt, y0, value(y1_id))
    _backward(s, store)
    b.emit(r.Statistics(r.STATISTICS, s.ids["w"], [12, -1.5, 2.5, 0.25, 3.0, 1.0, 0, 0, 0, 0, 5, 7]))
    b.emit(r.Same(r.SAME, s.ids["wt"], s.ids["w"], r.SAME_STATISTICS))
    b.emit(r.Hash(r.HASH, s.ids["x"], bytes(range(8))))
    b.emit(r.Saved(r.SAVED, 4, "AddmmBackward0", [s.ids["x"], s.ids["wt"], s.ids["w"]]))
    b.emit(r.Saved(r.SAVED, 6, "ReluBackward0", [y1_id]))
    b.emit(r.Note(r.NOTE, "unseen", "1 kernel launched by hand was not seen", 1))
    return s


def _forward(s: Scenario, x: Any, bias: Any, w: Any, wt: Any, y0: Any, y1: Any) -> None:
    b = s.builder
    stack = b.stack(*STACK)
    linear_args = ("input", "weight", "bias")
    module = b.op("module", "torch.nn.modules.linear.Linear", "Module", "net.fc")
    b.open(module, id=1, module="net.fc")
    t = b.op("aten", "aten::t", "Aten", "t", ("self",))
    addmm = b.op("aten", "aten::addmm", "Aten", "addmm", ("self", "mat1", "mat2", "beta", "alpha"))
    linear = b.op("api", "torch.nn.functional.linear", "Functional", "linear", linear_args)
    inside = {"module": "net.fc", "stack": stack}
    b.call(t, id=3, parent=2, args=[w], outputs=wt, **inside)
    b.call(addmm, id=4, parent=2, args=[bias, x, wt], kwargs={"alpha": 2}, outputs=y0, sequence_nr=11, **inside)
    b.call(linear, id=2, parent=1, args=[x, w, bias], outputs=y0, **inside)
    b.call(module, id=1, args=[x], outputs=y0, module="net.fc")
    relu = b.op("api", "torch.nn.functional.relu_", "Functional", "relu_", ("input",))
    aten_relu = b.op("aten", "aten::relu_", "Aten", "relu_", ("self",))
    b.call(aten_relu, id=6, parent=5, args=[y0], outputs=y1, written=["self", y1], sequence_nr=12)
    b.call(relu, id=5, args=[y0], outputs=y1, written=["input", y1])


def _backward(s: Scenario, store: str | None) -> None:
    b = s.builder
    grad_y, grad_x = s.put("grad_y", torch.ones(2, 3), store=store), s.put("grad_x", torch.randn(2, 4), store=store)
    grad_w = s.put("grad_w", torch.randn(3, 4), store=store)
    node = b.op("node", "AddmmBackward0", "Node", "AddmmBackward0")
    mm = b.op("aten", "aten::mm", "Aten", "mm", ("self", "mat2"))
    linear = b.op("api", "torch.nn.functional.linear", "Functional", "linear")
    grads = [r.TREE_TUPLE, grad_x, grad_w, None]
    b.call(
        mm,
        id=8,
        parent=7,
        phase="backward",
        forward=4,
        args=[grad_y, value(s.ids["w"])],
        outputs=grad_x,
        sequence_nr=11,
    )
    b.call(node, id=7, phase="backward", forward=4, args=[grad_y], outputs=grads, sequence_nr=11)
    b.call(linear, id=9, phase="backward", forward=2, args=[grad_y], outputs=grads, module="net.fc")
    b.emit(r.Gradient(r.GRADIENT, "net.fc.weight", s.ids["grad_y"], 7))
    b.emit(r.Gradient(r.GRADIENT, "net.fc.weight", s.ids["grad_w"], 7))
    foreach = b.op("aten", "aten::_foreach_add_.List", "Aten", "_foreach_add_", ("self", "other", "alpha"))
    lists = [[r.TREE_LIST, value(s.ids["w"]), value(s.ids["bias"])], [r.TREE_LIST, grad_w, value(s.ids["grad_y"])]]
    b.call(foreach, id=10, phase="optimizer", args=lists, kwargs={"alpha": [r.TREE_COMPLEX, 1.0, 2.0]})
