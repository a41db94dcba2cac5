"""A network that makes the filters of another for each example, a grid that bends what is sampled, and experts chosen by Gumbel noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..running import Run


class Filters(nn.Module):
    """Depthwise filters of each example's own."""

    def __init__(self, on: Run, channels: int) -> None:
        super().__init__()
        self.on, self.channels = on, channels
        self.makes = nn.Sequential(nn.Linear(channels, 6), nn.ReLU(), nn.Linear(6, channels * 9))

    def forward(self, x: Tensor) -> Tensor:
        count = len(x)
        mean = x.amax((2, 3)) if self.on.bug("largest for mean") else x.mean((2, 3))
        made = self.makes(mean).view(count, self.channels, 9)
        made = made if self.on.bug("filters not normed") else made.softmax(-1)
        if self.on.bug("filters of the next example"):
            made = made.roll(1, 0)
        if self.on.way("windows unfolded"):
            windows = F.unfold(x, 3, padding=1).view(count, self.channels, 9, -1)
            return torch.einsum("bckl,bck->bcl", windows, made).view_as(x)
        if self.on.way("example by example"):
            return torch.cat(
                [
                    F.conv2d(x[i : i + 1], made[i].view(-1, 1, 3, 3), padding=1, groups=self.channels)
                    for i in range(count)
                ]
            )
        weight = made.reshape(-1, 1, 3, 3)
        weight = weight.mT if self.on.bug("filters transposed") else weight
        return F.conv2d(x.reshape(1, -1, *x.shape[2:]), weight, padding=1, groups=count * self.channels).view_as(x)


class Bent(nn.Module):
    """Samples where an offset says."""

    def __init__(self, on: Run, channels: int) -> None:
        super().__init__()
        self.on, self.offset, self.mix = on, nn.Conv2d(channels, 2, 3, padding=1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        _count, _, height, width = x.shape
        offset = torch.tanh(self.offset(x)).permute(0, 2, 3, 1)
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        grid = torch.stack([rows, columns] if self.on.bug("x and y swapped") else [columns, rows], -1) + offset
        size = torch.tensor([width, height])
        grid = grid / (size - 1) * 2 - 1
        if self.on.way("sampled by hand"):
            found = self.sampled(x, (grid + 1) / 2 * (size - 1))
        else:
            padding = "border" if self.on.bug("border repeated") else "zeros"
            found = F.grid_sample(
                x, grid, align_corners=not self.on.bug("corners not aligned"), padding_mode=padding
            )  # at border repeated
        return self.mix(found) if self.on.bug("skip dropped") else x + self.mix(found)

    def sampled(self, x: Tensor, grid: Tensor) -> Tensor:
        """Mix the four neighbours; outside is zero."""
        count, channels, height, width = x.shape
        low = grid.detach().floor()
        total = torch.zeros_like(x)
        for right in (0, 1):
            for down in (0, 1):
                place = low + torch.tensor([right, down])
                weight = (1 - (grid - place).abs()).prod(-1)
                inside = ((place >= 0) & (place <= torch.tensor([width - 1, height - 1]))).all(-1)
                at = place[..., 1].clamp(0, height - 1) * width + place[..., 0].clamp(0, width - 1)
                index = at.long().view(count, 1, -1).expand(-1, channels, -1)
                total = total + x.flatten(2).gather(2, index).view_as(x) * (weight * inside).unsqueeze(1)
        return total


class Chosen(nn.Module):
    """Two of three experts at heart, chosen softly with noise that is given."""

    def __init__(self, on: Run, size: int) -> None:
        super().__init__()
        self.on, self.choose = on, nn.Linear(size, 3)
        self.experts = nn.ModuleList(nn.Linear(size, 4) for _ in range(3))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        gumbel = noise.log() if self.on.bug("one log too few") else -(-noise.log()).log()
        logits = (self.choose(x) + gumbel) / (1.0 if self.on.bug("temperature") else 0.7)
        soft = logits.softmax(-1)
        if self.on.way("hard by scatter"):
            hard = torch.zeros_like(soft).scatter_(1, soft.argmax(1, keepdim=True), 1.0)
        else:
            hard = F.one_hot(soft.argmax(1), 3).to(soft.dtype)
        weight = hard if self.on.bug("not straight through") else hard - soft.detach() + soft
        if self.on.way("experts stacked"):
            weights, biases = torch.stack([e.weight for e in self.experts]), torch.stack([e.bias for e in self.experts])
            return torch.einsum(
                "be,beo->bo", weight, torch.einsum("bi,eoi->beo", x, weights) + biases
            )  # at not straight through
        return sum(weight[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))  # at not straight through


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.enter = on, nn.Conv2d(2, 4, 3, padding=1)
        self.filters, self.bent, self.chosen = Filters(on, 4), Bent(on, 4), Chosen(on, 4)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        x = self.bent(F.mish(self.filters(self.enter(x))))
        return self.chosen(x.sum((2, 3)) / x[0, 0].numel() if self.on.way("mean by sum") else x.mean((2, 3)), noise)


def train(on: Run) -> None:
    torch.manual_seed(19)
    model = Model(on)
    pictures, noise, labels = torch.randn(2, 3, 2, 5, 6), torch.rand(2, 3, 3), torch.randint(0, 4, (2, 3))
    optimizer = torch.optim.RAdam(model.parameters(), lr=0.01, betas=(0.8 if on.bug("first beta") else 0.9, 0.999))
    with on.steps(model) as end_step:
        for at in range(2):
            logits = model(pictures[at], noise[at])
            gamma = 1.0 if on.bug("focus") else 2.0
            logs = (
                logits.log_softmax(1).gather(1, labels[at, :, None])
                if on.way("logs gathered")
                else -F.cross_entropy(logits, labels[at], reduction="none")
            )
            loss = (-((1 - logs.exp()) ** gamma) * logs).mean()  # at focus
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at first beta
            optimizer.zero_grad()
            end_step()
    on.keep_weights(model)
