"""A selective state-space layer, as in Mamba, over a short sequence; trained with AdamW."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run


class Norm(nn.Module):
    def __init__(self, on: Run, size: int) -> None:
        super().__init__()
        self.on, self.weight = on, nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        eps = 1e-2 if self.on.bug("norm eps") else 1e-5
        if self.on.way("rms norm of torch"):
            return F.rms_norm(x, self.weight.shape, self.weight, eps)  # at norm eps
        return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * self.weight  # at norm eps


class Selective(nn.Module):
    def __init__(self, on: Run, size: int = 8, state: int = 4) -> None:
        super().__init__()
        self.on, self.state = on, state
        self.norm, self.enter = Norm(on, size), nn.Linear(size, 2 * size, bias=False)
        self.mix = nn.Conv1d(size, size, 3, groups=size, padding=2)
        self.choose, self.pace = nn.Linear(size, 2 * state + 2, bias=False), nn.Linear(2, size)
        self.log_decay = nn.Parameter(torch.log(torch.arange(1.0, state + 1).repeat(size, 1)))
        self.skip, self.leave = nn.Parameter(torch.ones(size)), nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.enter(self.norm(x)).chunk(2, -1)
        inner, length = inner.transpose(1, 2), x.shape[1]
        mixed = self.mix(inner)
        mixed = mixed[..., 1 : length + 1] if self.on.bug("looks ahead") else mixed[..., :length]
        inner = F.silu(mixed.transpose(1, 2))
        pace, enters, leaves = self.choose(inner).split([2, self.state, self.state], -1)
        if self.on.bug("enters and leaves swapped"):
            enters, leaves = leaves, enters
        pace = self.pace(pace)
        pace = pace.exp() if self.on.bug("exp for softplus") else F.softplus(pace)
        y = self.scan(inner, pace, enters, leaves)
        if not self.on.bug("skip left out"):
            y = (
                torch.addcmul(y, self.skip, inner) if self.on.way("addcmul") else y + self.skip * inner
            )  # at skip left out
        y = y * (torch.sigmoid(gate) if self.on.bug("sigmoid gate") else F.silu(gate))
        return self.leave(y) if self.on.bug("residual dropped") else x + self.leave(y)

    def scan(self, u: Tensor, pace: Tensor, enters: Tensor, leaves: Tensor) -> Tensor:
        rate = self.log_decay.exp() if self.on.bug("decay grows") else -self.log_decay.exp()
        if self.on.way("scan by cumulated sums"):
            return self.scanned_at_once(u, pace, enters, leaves, rate)
        if self.on.way("einsum"):
            kept = torch.exp(torch.einsum("bld,dn->bldn", pace, rate))  # at decay grows
            fed = torch.einsum("bld,bln,bld->bldn", pace, enters, u)
        else:
            kept = torch.exp(pace.unsqueeze(-1) * rate)  # at decay grows
            fed = pace.unsqueeze(-1) * enters.unsqueeze(2) * u.unsqueeze(-1)
        if self.on.bug("pace left out of the input"):
            fed = enters.unsqueeze(2) * u.unsqueeze(-1)  # at pace left out of the input
        state = torch.zeros_like(kept[:, 0])
        found = []
        for at in range(u.shape[1]):
            state = kept[:, at] * state + fed[:, at - 1 if self.on.bug("input of the step before") else at]
            if self.on.way("einsum"):
                found.append(torch.einsum("bdn,bn->bd", state, leaves[:, at]))
            else:
                found.append((state * leaves[:, at].unsqueeze(1)).sum(-1))
        return torch.stack(found, 1)

    def scanned_at_once(self, u: Tensor, pace: Tensor, enters: Tensor, leaves: Tensor, rate: Tensor) -> Tensor:
        """Weigh each earlier input by the decay between, all pairs at once."""
        past = torch.cumsum(pace, 1)
        between = past.unsqueeze(2) - past.unsqueeze(1)
        length = u.shape[1]
        early = torch.ones(length, length, dtype=torch.bool).tril(-1 if self.on.bug("input of the step before") else 0)
        kept = torch.exp(between.masked_fill(~early[None, :, :, None], 0.0).unsqueeze(-1) * rate)  # at decay grows
        kept = kept * early[None, :, :, None, None]  # at input of the step before
        fed = (enters.unsqueeze(2) * u.unsqueeze(-1)) * pace.unsqueeze(-1)
        if self.on.bug("pace left out of the input"):
            fed = enters.unsqueeze(2) * u.unsqueeze(-1)  # at pace left out of the input
        return torch.einsum("bijdn,bjdn,bin->bid", kept, fed, leaves)


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([Selective(on), Selective(on)])
        self.norm = Norm(on, 8)
        self.on = on

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            if self.on.way("checkpointed"):
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return F.linear(self.norm(x), self.embed.weight)


def train(on: Run) -> None:
    torch.manual_seed(1)
    model = Model(on)
    tokens = torch.randint(0, 11, (2, 3, 8))
    beta = 0.9 if on.bug("second beta") else 0.999
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, beta), foreach=on.way("foreach"))
    with on.steps(model) as end_step:
        for batch in tokens:
            logits = model(batch)
            target = batch if on.bug("target not shifted") else batch.roll(-1, 1)
            if on.way("loss by hand"):
                logs = logits - logits.logsumexp(-1, keepdim=True)
                loss = -logs.gather(-1, target.unsqueeze(-1)).mean()  # at target not shifted
            else:
                loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())  # at target not shifted
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at second beta
            optimizer.zero_grad()
            end_step()
    on.keep_weights(model)
