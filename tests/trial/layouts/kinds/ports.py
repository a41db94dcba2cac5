"""The same model under other names, with its weights laid out otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..parts import HEADS, SIZE, Attention, Gated, Norm
from ..tasks import Run, Task

EACH = SIZE // HEADS
Made = Callable[[str, nn.Module], nn.Module]


def run_once(on: Run, task: Task, model: nn.Module) -> None:
    inputs = task.equal[0].inputs
    with on.steps(model) as end_step, torch.no_grad():
        output = model(**inputs)
        end_step()
    on.keep(output)


def original(on: Run, task: Task) -> None:
    run_once(on, task, task.model)


def replaced(model: nn.Module, table: dict[type, Made]) -> None:
    """Put other modules in the place of those of some types."""
    for name, module in list(model.named_modules()):
        if type(module) in table:
            model.set_submodule(name, table[type(module)](name, module))


def linears(model: nn.Module, wanted: Callable[[nn.Linear], bool] = lambda one: True) -> list[str]:
    return [name for name, one in model.named_modules() if type(one) is nn.Linear and wanted(one)]


def alike(model: nn.Module) -> list[str]:
    """Return the names of the last two linears of one shape."""
    shapes: dict[torch.Size, list[str]] = {}
    for name in linears(model):
        shapes.setdefault(model.get_submodule(name).weight.shape, []).append(name)
    return next((names[-2:] for names in reversed(shapes.values()) if len(names) > 1), [])


# -- other names, transposed ---------------------------------------------------------------------------------------------


class Projection(nn.Module):
    """A linear whose weight is transposed."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.kernel = nn.Parameter(linear.weight.detach().T.contiguous())
        self.offset = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.kernel
        return y if self.offset is None else y + self.offset


class Table(nn.Module):
    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.rows = nn.Parameter(embedding.weight.detach().clone())

    def forward(self, at: Tensor) -> Tensor:
        return self.rows[at]


class Scaled(nn.Module):
    """A root mean square norm."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(norm.weight.detach().clone()), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.scale.shape, eps=self.eps) * self.scale


class Normed(nn.Module):
    """A layer norm."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(norm.weight.detach().clone()), nn.Parameter(norm.bias.detach().clone())
        self.eps = norm.eps

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.gain + self.shift


class Convolved(nn.Module):
    """A convolution whose kernel is height, width, in, out."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.kernel = nn.Parameter(conv.weight.detach().permute(2, 3, 1, 0).contiguous())
        self.offset = None if conv.bias is None else nn.Parameter(conv.bias.detach().clone())
        self.stride, self.padding = conv.stride, conv.padding

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel.permute(3, 2, 0, 1), self.offset, self.stride, self.padding)


class Port(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.net(**inputs)


PORTED: dict[type, Made] = {
    nn.Linear: lambda _, one: Projection(one),
    nn.Embedding: lambda _, one: Table(one),
    Norm: lambda _, one: Scaled(one),
    nn.LayerNorm: lambda _, one: Normed(one),
    nn.Conv2d: lambda _, one: Convolved(one),
}


@torch.no_grad()
def port(on: Run, task: Task) -> None:
    model = task.model
    square = linears(model, lambda one: one.in_features == one.out_features)
    biased = linears(model, lambda one: one.bias is not None)
    spoil: dict[str, Callable[[Any], None]] = {}
    pair = alike(model)
    if square and on.bug("a square weight not transposed"):
        spoil[square[-1]] = lambda one: one.weight.copy_(one.weight.T.clone())
    if pair and on.bug("a layer's weight loaded twice"):
        spoil[pair[1]] = lambda one: one.weight.copy_(model.get_submodule(pair[0]).weight)
    if on.bug("a weight left as initialised"):
        spoil[linears(model)[0]] = lambda one: nn.init.normal_(one.weight, 0.0, 0.3)
    if biased and on.bug("a bias forgotten"):
        spoil[biased[-1]] = lambda one: one.bias.zero_()
    if hasattr(model, "words") and on.bug("rows of the table shifted"):
        spoil["words"] = lambda one: one.weight.copy_(one.weight.roll(1, 0))
    norms = [name for name, one in model.named_modules() if type(one) in (Norm, nn.LayerNorm)]
    if norms and on.bug("one added to a norm's weight"):
        spoil[norms[-1]] = lambda one: one.weight.add_(1)
    if pair and on.bug("two weights swapped"):
        one, two = (model.get_submodule(name) for name in pair)
        one.weight, two.weight = two.weight, one.weight
        on.guilty.update(f"net.{name}" for name in pair)
    for name, spoiled in spoil.items():
        spoiled(model.get_submodule(name))
        on.guilty.add(f"net.{name}")
    replaced(model, PORTED)
    if norms and on.bug("another eps"):
        model.get_submodule(norms[-1]).eps = 1e-2
        on.guilty.add(f"net.{norms[-1]}")
    run_once(on, task, Port(model))


# -- heads ---------------------------------------------------------------------------------------------------------------


class Paired(Attention):
    """Attention that rotates pairs of neighbours, as the paper has it."""

    on: Run

    def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor, cache: Any = None) -> Tensor:
        q, k, v = (t(x).unflatten(-1, (-1, EACH)).transpose(1, 2) for t in (self.q, self.k, self.v))
        q, k = self.turned(q, positions), self.turned(k, positions)
        k, v = (t.repeat_interleave(self.heads // self.keys, 1) for t in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None, :, None] * torch.logspace(0, -1, EACH // 2, dtype=x.dtype)
        if self.on.bug("angles of whole heads"):
            angles = positions[:, None, :, None] * torch.logspace(0, -0.5, EACH // 2, dtype=x.dtype)
        left, right = x.unflatten(-1, (-1, 2)).unbind(-1)
        if self.on.bug("turned the other way"):
            angles = -angles
        if self.on.bug("halves for pairs"):
            left, right = x.chunk(2, -1)
        turned = (
            left * angles.cos() - right * angles.sin(),
            right * angles.cos() + left * angles.sin(),
        )  # at angles of whole heads, turned the other way, halves for pairs
        return torch.stack(turned, -1).flatten(-2)


def paired(weight: Tensor, heads: int) -> Tensor:
    """Permute the rows of each head: halves become pairs."""
    return weight.unflatten(0, (heads, 2, EACH // 2)).transpose(1, 2).flatten(0, 2)


@torch.no_grad()
def pairs_for_halves(on: Run, task: Task) -> None:
    def made(name: str, old: nn.Module) -> nn.Module:
        assert isinstance(old, Attention)
        if not old.rotary:
            return old
        new = Paired(True, old.keys)
        new.on, new.out = on, old.out
        last = name.startswith("layers.1")
        q, k, v = paired(old.q.weight, HEADS), paired(old.k.weight, old.keys), old.v.weight
        if last and on.bug("permutation of k forgotten"):
            k = old.k.weight
            on.guilty.update((f"{name}.k", name))
        if last and on.bug("permuted twice"):
            q = paired(q, HEADS)
            on.guilty.update((f"{name}.q", name))
        if last and on.bug("permuted as one head"):
            q = old.q.weight.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)
            on.guilty.update((f"{name}.q", name))
        if last and on.bug("v permuted too"):
            v = paired(v, old.keys)
            on.guilty.update((f"{name}.v", name))
        for module, weight in ((new.q, q), (new.k, k), (new.v, v)):
            module.weight.copy_(weight)
        return new

    replaced(task.model, {Attention: made})
    run_once(on, task, task.model)


@torch.no_grad()
def heads_permuted(on: Run, task: Task) -> None:
    def permuted(weight: Tensor, order: list[int], dim: int = 0) -> Tensor:
        parts = weight.unflatten(dim, (len(order), -1))
        return parts.index_select(dim, torch.tensor(order)).flatten(dim, dim + 1)

    named = [(name, one) for name, one in task.model.named_modules() if isinstance(one, Attention)]
    for number, (name, one) in enumerate(named):
        last = number == len(named) - 1
        order = [2, 3, 0, 1]
        keys = order if one.keys == HEADS else [1, 0]
        changes = {"q": (order, 0), "k": (keys, 0), "v": (keys, 0), "out": (order, 1)}
        if last and on.bug("columns behind the heads not permuted"):
            changes.pop("out")
            on.guilty.update((name, f"{name}.out"))
        if last and on.bug("heads of q not permuted"):
            changes.pop("q")
            on.guilty.update((name, f"{name}.q"))
        if last and on.bug("heads of v in another order"):
            changes["v"] = ([*reversed(range(one.keys))] if one.keys == HEADS else [0, 1], 0)
            on.guilty.update((name, f"{name}.v", f"{name}.out"))
        if last and on.bug("rows permuted behind the heads"):
            changes["out"] = (order, 0)
            on.guilty.update((name, f"{name}.out"))
        for part, (wanted, dim) in changes.items():
            weight = getattr(one, part).weight
            weight.copy_(permuted(weight.clone(), wanted, dim))
    run_once(on, task, task.model)


# -- fused and split -----------------------------------------------------------------------------------------------------


class FusedAttention(Attention):
    on: Run

    def fuse(self, old: Attention, name: str) -> None:
        parts = [old.q.weight, old.k.weight, old.v.weight]
        last = name.startswith("layers.1")
        if last and self.on.bug("fused in another order"):
            parts = [parts[0], parts[2], parts[1]]
        weight = torch.cat(parts)
        if last and self.on.bug("fused head by head"):
            weight = torch.cat([one.unflatten(0, (old.keys, -1)) for one in parts], 1).flatten(0, 1)
        if last and self.on.bug("a row of the fused lost"):
            weight[SIZE + 1] = 0
        self.qkv = nn.Linear(SIZE, len(weight), bias=False)
        self.qkv.weight.copy_(weight)
        del self.q, self.k, self.v
        self.out = old.out
        if (
            last
            and {"bug fused in another order", "bug fused head by head", "bug a row of the fused lost"} & self.on.chosen
        ):
            self.on.guilty.update((name, f"{name}.qkv"))

    def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor, cache: Any = None) -> Tensor:
        q, k, v = self.qkv(x).split([SIZE, self.keys * EACH, self.keys * EACH], -1)
        if self.on.bug("v taken for k"):
            k = v
        return self.attended(q, k, v, mask, positions, cache)  # at v taken for k


class FusedGate(Gated):
    on: Run

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        if self.on.bug("gate and up swapped"):
            gate, up = up, gate
        if self.on.bug("gate and up by turns"):
            both = self.both(x)
            gate, up = both[..., ::2], both[..., 1::2]
        return self.down(F.silu(gate) * up)  # at gate and up swapped, gate and up by turns


@torch.no_grad()
def fused(on: Run, task: Task) -> None:
    def attention(name: str, old: nn.Module) -> nn.Module:
        assert isinstance(old, Attention)
        new = FusedAttention(old.rotary, old.keys)
        new.on = on
        new.fuse(old, name)
        return new

    def gated(name: str, old: nn.Module) -> nn.Module:
        assert isinstance(old, Gated)
        new = FusedGate()
        new.on = on
        new.both = nn.Linear(SIZE, 2 * len(old.gate.weight), bias=False)
        new.both.weight.copy_(torch.cat([old.gate.weight, old.up.weight]))
        del new.gate, new.up
        new.down = old.down
        return new

    replaced(task.model, {Attention: attention, Gated: gated})
    run_once(on, task, task.model)


class Gates(nn.Module):
    """A GRU by hand, each gate with weights of its own."""

    def __init__(self, gru: nn.GRU, on: Run) -> None:
        super().__init__()
        self.on = on
        for side, weight, bias in (("x", gru.weight_ih_l0, gru.bias_ih_l0), ("h", gru.weight_hh_l0, gru.bias_hh_l0)):
            for gate, w, b in zip("rzn", weight.chunk(3), bias.chunk(3), strict=True):
                linear = nn.Linear(SIZE, SIZE)
                linear.weight.copy_(w)
                linear.bias.copy_(b)
                setattr(self, gate + side, linear)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        h, found = torch.zeros_like(x[:, 0]), []
        for at in range(x.shape[1]):
            one = x[:, at]
            r, z = torch.sigmoid(self.rx(one) + self.rh(h)), torch.sigmoid(self.zx(one) + self.zh(h))
            if self.on.bug("reset and update swapped"):
                r, z = z, r
            if self.on.bug("reset before the product"):
                new = torch.tanh(self.nx(one) + self.nh(r * h))
            else:
                new = torch.tanh(self.nx(one) + r * self.nh(h))  # at reset before the product, reset and update swapped
            if self.on.bug("update the other way"):
                z = 1 - z
            h = (1 - z) * new + z * h  # at update the other way
            found.append(h)
        return torch.stack(found, 1), None


@torch.no_grad()
def gates_apart(on: Run, task: Task) -> None:
    replaced(task.model, {nn.GRU: lambda _, one: Gates(one, on)})
    if on.bug("hidden bias forgotten"):
        task.model.layers[1].gru.nh.bias.zero_()
        on.guilty.update(("layers.1.gru.nh", "layers.1.gru"))
    run_once(on, task, task.model)


class Split(nn.Module):
    """A linear whose input is divided: two shards, and their sum."""

    def __init__(self, linear: nn.Linear, on: Run, name: str) -> None:
        super().__init__()
        self.on, self.named = on, name
        halves = linear.weight.detach().chunk(2, 1)
        if on.bug("a shard twice") and name == on_last(on):
            halves = halves[:1] * 2
            on.guilty.add(name)
        self.one, self.two = (nn.Parameter(half.clone()) for half in halves)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        if self.on.bug("shards swapped"):
            left, right = right, left
        bias = self.bias if self.bias is not None and self.on.bug("bias in each shard") else None
        y = F.linear(left, self.one, self.bias) + F.linear(right, self.two, bias)  # at shards swapped
        return y / 2 if self.on.bug("mean over shards") else y


def on_last(on: Run) -> str:
    return on.last_linear


def shards(on: Run, task: Task) -> None:
    """Row-wise tensor parallelism, by hand."""
    on.last_linear = linears(task.model)[-1]
    even = linears(task.model, lambda one: one.in_features % 2 == 0)
    for name in even:
        task.model.set_submodule(name, Split(task.model.get_submodule(name), on, name))
    run_once(on, task, task.model)


# -- vocabulary ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _longer(on: Run, old: nn.Embedding) -> nn.Embedding:
    many, size = old.weight.shape
    new = nn.Embedding(many + 9, size)
    new.weight.zero_()
    first = 1 if on.bug("rows begin one late") else 0
    new.weight[first : many + first] = old.weight
    if first:
        on.guilty.add("words")
    return new


def padded_vocabulary(on: Run, task: Task) -> None:
    """A table and a head with rows of zeros behind; what they say of these rows is cut off."""
    model, batch = task.model, task.equal[0]
    many = len(model.words.weight)
    model.words = _longer(on, model.words)
    head = model.head
    assert isinstance(head, nn.Linear)
    longer = head.out_features == many
    if longer:
        model.head = nn.Linear(head.in_features, many + 9, bias=head.bias is not None)
        with torch.no_grad():
            for name, p in model.head.named_parameters():
                p.zero_()
                p[:many] = getattr(head, name)
    with on.steps(model) as end_step:
        output = model(**batch.inputs)
        if longer and on.bug("padding counts in the softmax"):
            output = output * 1.0
        elif longer and on.bug("cut from the other end"):
            output = output[..., 9:]
        elif longer:
            output = output[..., :many]
        loss = (
            task.loss(output, batch.labels) / batch.counted
        )  # at padding counts in the softmax, cut from the other end
        loss.backward()
        end_step()
    on.keep(loss)


def vocabulary(on: Run, task: Task) -> None:
    batch = task.equal[0]
    with on.steps(task.model) as end_step:
        loss = task.mean(batch)
        loss.backward()
        end_step()
    on.keep(loss)


def tied(on: Run, task: Task) -> None:
    """The head is the table itself."""
    model = task.model
    _untie(task)
    model.head.weight = model.words.weight
    if on.bug("the head of before"):
        model.head.weight = nn.Parameter(model.words.weight.detach().roll(1, 1))
        on.guilty.add("head")
    if on.bug("the table scaled too"):
        model.words.register_forward_hook(lambda module, args, output: output * SIZE**0.5)
    if on.bug("a row of the table retrained"):
        with torch.no_grad():
            model.words.weight[3] *= 1.5
        on.guilty.update(("words", "head"))
    run_once(on, task, model)


def _untie(task: Task) -> None:
    with torch.no_grad():
        task.model.head.weight.copy_(task.model.words.weight)


def untied(on: Run, task: Task) -> None:
    _untie(task)
    run_once(on, task, task.model)


KINDS = {
    "a port": (port, original, ""),
    "pairs for halves": (pairs_for_halves, original, "rotary"),
    "heads permuted": (heads_permuted, original, "heads"),
    "fused weights": (fused, original, "fuse"),
    "gates apart": (gates_apart, original, "gru"),
    "shards summed": (shards, original, ""),
    "a padded vocabulary": (padded_vocabulary, vocabulary, "words"),
    "tied weights": (tied, untied, "tie"),
}
