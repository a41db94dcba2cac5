"""Models that no other test of compiled code has, and what is wrong in the code that is generated of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Highway(nn.Module):
    """Two gated layers, and a loss between two halves of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.carry, self.gate = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            gate = torch.sigmoid(self.gate(x) - 1)
            x = gate * torch.tanh(self.carry(x)) + (1 - gate) * x
        one, other = F.normalize(x, dim=-1).chunk(2)
        found: Tensor = (one @ other.T / 0.3).logsumexp(-1).mean() - (one * other).sum(-1).mean() / 0.3
        return found


class Recurrent(nn.Module):
    """A gated recurrent cell, written out, over four moments."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.kept = nn.Linear(24, 48), nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 16)
        for moment in range(4):
            r, z, n = (self.given(x.roll(moment, 1)) + self.kept(h)).chunk(3, -1)
            h = torch.lerp(torch.tanh(n * torch.sigmoid(r)), h, torch.sigmoid(z))
        return F.smooth_l1_loss(h, x[:, :16])


class Mixture(nn.Module):
    """A mixture of normal distributions: logarithms of sums of exponentials, and softplus."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(23, 15)

    def forward(self, x: Tensor) -> Tensor:
        weight, mean, scale = self.head(x[:, 1:]).chunk(3, -1)
        scale = F.softplus(scale) + 0.05
        z = (x[:, :1] - mean) / scale
        found: Tensor = -(weight.log_softmax(-1) - 0.5 * z.square() - scale.log()).logsumexp(-1).mean()
        return found


class Squeeze(nn.Module):
    """A convolution with groups' norms, and channels that are scaled by what is in them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 12, 3, padding=1), nn.GroupNorm(3, 12)
        self.down, self.up = nn.Linear(12, 5), nn.Linear(5, 12)

    def forward(self, x: Tensor) -> Tensor:
        h = F.hardswish(self.norm(self.conv(x.reshape(x.shape[0], 4, 6))))
        scale = torch.sigmoid(self.up(F.leaky_relu(self.down(h.mean(-1)), 0.2)))
        found: Tensor = (h * scale[..., None]).amax(-1).exp().mean().sqrt()
        return found


class Slopes(nn.Module):
    """Attention with a slope for distance, and a norm by root mean squares."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.scale = nn.Linear(6, 18), nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(x.shape[0], 4, 6)
        h = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.scale
        q, k, v = self.qkv(h).chunk(3, -1)
        far = (torch.arange(4)[:, None] - torch.arange(4)).abs() * 0.3
        found: Tensor = F.silu((q @ k.transpose(1, 2) / 6**0.5 - far).softmax(-1) @ v + x).cos().mean((1, 2)).sum()
        return found


class Kernels(nn.Module):
    """Distances to centers, a truncated parabola of each, and a quantile."""

    def __init__(self) -> None:
        super().__init__()
        self.centers, self.out = nn.Parameter(torch.randn(9, 24)), nn.Linear(9, 2)

    def forward(self, x: Tensor) -> Tensor:
        far = (x[:, None] - self.centers).square().mean(-1)
        found: Tensor = self.out(F.relu(1 - far / 9) + F.elu(far - 2))
        miss = x[:, :2] - found
        return torch.maximum(0.2 * miss, -0.8 * miss).mean() + found.abs().mean() * 0.1


MODELS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__.lower(): kind for kind in (Highway, Recurrent, Mixture, Squeeze, Slopes, Kernels)
}


@dataclass(frozen=True)
class Slip:
    """A slip of a code generator: what it writes instead of what is right.

    Attributes:
        pattern: what is looked for in the source of a kernel.
        instead: what is put there.
    """

    pattern: str
    instead: str

    def applied(self, code: str, place: int) -> str | None:
        """Return the source of a kernel with the slip at one of the places it fits, counted round; None without one."""
        found = list(re.finditer(self.pattern, code))
        if not found:
            return None
        at = found[place % len(found)]
        return code[: at.start()] + at.expand(self.instead) + code[at.end() :]


SLIPS: dict[str, Slip] = {
    "plus for minus": Slip(r"= (tmp\d+) - (tmp\d+);", r"= \1 + \2;"),
    "minus for plus": Slip(r"= (tmp\d+) \+ (tmp\d+);", r"= \1 - \2;"),
    "times for divided": Slip(r"= (tmp\d+) / (tmp\d+);", r"= \1 * \2;"),
    "a factor forgotten": Slip(r"= (tmp\d+) \* (tmp\d+);", r"= \1;"),
    "a constant rounded": Slip(r"static_cast<float>\((-?\d*\.\d+)\)", r"static_cast<float>(\g<1> * 1.02)"),
    "another function": Slip(r"(tmp\d+)\.(?:exp|tanh|log)\(\)", r"\1.sin()"),
    "a root for its inverse": Slip(r"(tmp\d+)\.rsqrt\(\)", r"\1.sqrt()"),
    "least for greatest": Slip(r"max(imum|_propagate_nan)\(", r"min\1("),
    "a loop that ends early": Slip(
        r"x(\d)<static_cast<int64_t>\((\d\d+)L\); x\1\+=static_cast<int64_t>\(8L\)",
        r"x\1<static_cast<int64_t>(\2L - 8L); x\1+=static_cast<int64_t>(8L)",
    ),
    "a loop that begins late": Slip(
        r"x(\d)=static_cast<int64_t>\(0L\); x\1<static_cast<int64_t>\((\d+)L\); x\1\+=static_cast<int64_t>\(1L\)",
        r"x\1=static_cast<int64_t>(1L); x\1<static_cast<int64_t>(\2L); x\1+=static_cast<int64_t>(1L)",
    ),
    "a stride too small": Slip(r"loadu\((in_(?:out_)?ptr\d+) \+ ([^;]*?)(\d\d+)L\*x", r"loadu(\1 + \2(\3L - 1L)*x"),
    "a sum that starts at one": Slip(
        r"tmp_acc0_vec = at::vec::Vectorized<float>\(0\)", "tmp_acc0_vec = at::vec::Vectorized<float>(1)"
    ),
    "a sign lost": Slip(r"(tmp\d+)\.(?:neg|abs)\(\)", r"\1"),
    "the other branch": Slip(r"blendv\((tmp\d+), (tmp\d+),", r"blendv(\2, \1,"),
}
