"""A graph network with attention over edges, in scattered sums; nodes are sorted into classes by nine labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run

NODES, HEADS, SIZE = 10, 2, 4


class Attention(nn.Module):
    def __init__(self, on: Run, enters: int) -> None:
        super().__init__()
        self.on, self.lin = on, nn.Linear(enters, HEADS * SIZE, bias=False)
        self.leaving, self.entering = nn.Parameter(torch.randn(HEADS, SIZE)), nn.Parameter(torch.randn(HEADS, SIZE))
        self.bias = nn.Parameter(torch.zeros(HEADS * SIZE))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, goal = edges.flip(0) if self.on.bug("edges the other way") else edges
        h = self.lin(x).view(-1, HEADS, SIZE)
        if self.on.way("einsum"):
            left, right = torch.einsum("nhd,hd->nh", h, self.leaving), torch.einsum("nhd,hd->nh", h, self.entering)
        else:
            left, right = (h * self.leaving).sum(-1), (h * self.entering).sum(-1)
        scores = F.leaky_relu(left[source] + right[goal], 0.01 if self.on.bug("slope") else 0.2)
        if self.on.way("dense attention"):
            return self.dense(h, scores, source, goal)
        where = source if self.on.bug("softmax over the sources") else goal
        alpha = self.softmax(scores, where)
        if self.on.bug("weight of the next head"):
            alpha = alpha.roll(1, 1)
        message = alpha.unsqueeze(-1) * h[source]
        if self.on.way("scatter_add"):
            index = goal[:, None, None].expand_as(message)
            out = torch.zeros(NODES, HEADS, SIZE).scatter_add(0, index, message)
        elif self.on.way("matrix of edges"):
            out = torch.tensordot(F.one_hot(goal, NODES).to(message.dtype), message, ([0], [0]))
        else:
            out = torch.zeros(NODES, HEADS, SIZE).index_add(0, goal, message)
        return out.flatten(1) if self.on.bug("bias dropped") else out.flatten(1) + self.bias

    def softmax(self, scores: Tensor, where: Tensor) -> Tensor:
        index = where[:, None].expand_as(scores)
        top = torch.full((NODES, HEADS), -torch.inf).scatter_reduce(0, index, scores.detach(), "amax")
        if self.on.way("without the largest"):
            weights = scores.exp()
        else:
            weights = (scores - top[where]).exp()
        total = torch.zeros(NODES, HEADS).index_add(0, where, weights)
        total = total.detach() if self.on.bug("sum detached") else total
        return weights / (total[where] + (1e-1 if self.on.bug("large eps") else 0))

    def dense(self, h: Tensor, scores: Tensor, source: Tensor, goal: Tensor) -> Tensor:
        """Write scores into a matrix of nodes and nodes."""
        table = torch.full((NODES, NODES, HEADS), -torch.inf).index_put((goal, source), scores)
        alpha = table.softmax(0 if self.on.bug("softmax over the sources") else 1).nan_to_num(0.0)
        if self.on.bug("weight of the next head"):
            alpha = alpha.roll(1, 2)
        out = torch.einsum("ijh,jhd->ihd", alpha, h)
        return out.flatten(1) if self.on.bug("bias dropped") else out.flatten(1) + self.bias


class Net(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.first, self.second = on, Attention(on, 5), Attention(on, HEADS * SIZE)
        self.norm, self.out = nn.BatchNorm1d(HEADS * SIZE), nn.Linear(HEADS * SIZE, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = F.elu(self.normed(self.first(x, edges)))
        return self.out(F.elu(self.second(x, edges)))

    def normed(self, x: Tensor) -> Tensor:
        if self.on.bug("norm of the averages"):
            return F.batch_norm(x, self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias)
        if not self.on.way("batch norm by hand"):
            return self.norm(x)  # at norm of the averages
        mean, spread = x.mean(0), x.var(0, unbiased=False)
        with torch.no_grad():
            self.norm.num_batches_tracked.add_(1)
            self.norm.running_mean.lerp_(mean, 0.1)
            self.norm.running_var.mul_(0.9).add_(x.var(0, unbiased=True), alpha=0.1)
        return (x - mean) / (spread + self.norm.eps).sqrt() * self.norm.weight + self.norm.bias


def train(on: Run) -> None:
    torch.manual_seed(3)
    model = Net(on)
    x, labels = torch.randn(NODES, 5), torch.randint(0, 3, (NODES,))
    pairs = torch.cartesian_prod(torch.arange(NODES), torch.arange(NODES))
    edges = pairs[(pairs[:, 0] == pairs[:, 1]) | (torch.rand(len(pairs)) < 0.25)].t()
    if on.way("edges in another order"):
        edges = edges[:, torch.arange(edges.shape[1] - 1, -1, -1)]
    known = torch.arange(NODES) < (10 if on.bug("all labels known") else 9)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    with on.steps(model) as end_step:
        for _ in range(2):
            optimizer.zero_grad()
            logits = model(x, edges)
            if on.way("loss masked"):
                loss = (F.cross_entropy(logits, labels, reduction="none") * known).sum() / known.sum()
            else:
                loss = F.cross_entropy(logits[known], labels[known])  # at all labels known
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            if on.way("adam by hand"):
                adam(optimizer)
            else:
                optimizer.step()
            end_step()
    on.keep_weights(model)
    on.keep(model.norm.running_mean, model.norm.running_var)


def adam(optimizer: torch.optim.Adam) -> None:
    """Do what Adam with weight decay does."""
    with torch.no_grad():
        for p in optimizer.param_groups[0]["params"]:
            state = optimizer.state[p]
            gradient = p.grad + 5e-4 * p
            count = state.get("count", 0) + 1
            mean = 0.9 * state.get("mean", torch.zeros_like(p)) + 0.1 * gradient
            square = 0.999 * state.get("square", torch.zeros_like(p)) + 0.001 * gradient * gradient
            state.update(count=count, mean=mean, square=square)
            p -= 0.01 * (mean / (1 - 0.9**count)) / ((square / (1 - 0.999**count)).sqrt() + 1e-8)
