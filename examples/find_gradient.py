"""Find the gradient of one weight: from the forward call to its backward, its aten ops and the bytes.

The recorded gradient is bit-equal to the one that autograd left in `.grad`.
"""

import sys
import tempfile

import torch

from aten_dump import DumpConfig, DumpMode, open_dump

path = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="aten-dump-") + "/dump"


class Model(torch.nn.Module):
    """Two linear layers around a nonlinearity."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 64)
        self.down = torch.nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map f32[..., 16] to f32[..., 4]."""
        return self.down(torch.nn.functional.gelu(self.up(x)))


torch.manual_seed(0)
model = Model()
with DumpMode(DumpConfig(path=path, data="tensor"), model=model):
    model(torch.randn(8, 16)).square().mean().backward()

rank = open_dump(path).step(0).rank(0)
forward = rank.calls.filter(op="Functional.linear", kind="api", phase="forward", module="down")[0]
print(f"{forward.name} ran in module {forward.module!r}, line {forward.source.line}")

print("its backward:")
for call in [*forward.backward, *forward.children[-1].backward]:  # of the API, then of its last aten op
    print(f"  {call.kind:6} {call.name}")

backward = next(call for call in forward.backward if call.kind == "api")
for slot, gradient in backward.output_values():
    producer, _ = gradient.producer or (None, "")
    print(f"{backward.name}.{slot} = {gradient.dtype_name}{list(gradient.shape)}, made by {producer}")

weight_gradient = rank.tensor(f"{backward.name}.output.1")  # 0 is the input's, 1 the weight's, 2 the bias's
same = torch.equal(weight_gradient, model.down.weight.grad)
print(f"bit-equal to model.down.weight.grad: {same}")
if not same:
    sys.exit("the recorded gradient differs from autograd's")
