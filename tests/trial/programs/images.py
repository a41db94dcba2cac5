"""Models of images: a diffusion UNet, a Mixer, and two towers that are trained against each other's batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..training import STEPS, Program, Training


class TimedBlock(nn.Module):
    """Group norm, convolution, and the time that is added between two convolutions."""

    def __init__(self, into: int, out: int, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, into), nn.Conv2d(into, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(width, out)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        inner = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(inner))) + self.skip(x)


class UNet(nn.Module):
    """Predicts the noise that was added to an image."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.stem, self.down1, self.down2 = (
            nn.Conv2d(3, 8, 3, padding=1),
            TimedBlock(8, 8, width),
            TimedBlock(8, 16, width),
        )
        self.qkv, self.out = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)
        self.up1, self.up2 = TimedBlock(24, 8, width), TimedBlock(16, 8, width)
        self.head = nn.Conv2d(8, 3, 3, padding=1)
        steps = torch.linspace(1e-3, 0.1, 50)
        self.register_buffer("kept", torch.cumprod(1 - steps, 0))

    def attend(self, x: Tensor) -> Tensor:
        count, channels, height, wide = x.shape
        q, k, v = self.qkv(x).flatten(2).chunk(3, dim=1)
        weights = torch.softmax(torch.bmm(q.transpose(1, 2), k) / math.sqrt(channels), dim=-1)
        return x + self.out(torch.bmm(v, weights.transpose(1, 2)).view(count, channels, height, wide))

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        half = self.width // 2
        angle = when[:, None].float() * torch.exp(-math.log(100.0) * torch.arange(half, device=when.device) / half)
        time = self.time(torch.cat([angle.sin(), angle.cos()], dim=-1))
        first = self.down1(self.stem(x), time)
        second = self.attend(self.down2(F.avg_pool2d(first, 2), time))
        up = self.up1(torch.cat([F.interpolate(second, scale_factor=2.0), first], dim=1), time)
        return self.head(F.silu(self.up2(torch.cat([up, self.stem(x)], dim=1), time)))


def _noise_loss(model: UNet, batch: dict[str, Tensor]) -> Tensor:
    image, when = batch["image"], batch["when"]
    noise = torch.randn_like(image)
    kept = model.kept[when][:, None, None, None]
    noisy = kept.sqrt() * image + (1 - kept).sqrt() * noise
    return F.mse_loss(model(noisy, when), noise)


def unet() -> Training:
    torch.manual_seed(21)
    batches = [{"image": torch.randn(2, 3, 8, 8), "when": torch.randint(0, 50, (2,))} for _ in range(STEPS)]
    return Training(UNet(), batches, _noise_loss, torch.optim.Adam, {"lr": 2e-3, "foreach": True}, clip=1.0, decay=0.5)


class MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 24), nn.GELU(), nn.Linear(24, patches))
        self.channels = nn.Sequential(nn.Linear(width, 40), nn.GELU(), nn.Dropout(0.1), nn.Linear(40, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.blocks = nn.Sequential(*(MixerBlock(16, 16) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 6)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x = self.blocks(self.patches(pixels).flatten(2).transpose(1, 2))
        return F.cross_entropy(self.head(self.norm(x).mean(dim=1)), labels, label_smoothing=0.1)


def mixer() -> Training:
    torch.manual_seed(22)
    batches = [{"pixels": torch.randn(5, 3, 16, 16), "labels": torch.randint(0, 6, (5,))} for _ in range(STEPS)]
    settings = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3, "foreach": True}
    return Training(Mixer(), batches, lambda m, b: m(**b), torch.optim.SGD, settings)


class TwoTowers(nn.Module):
    """Images and texts, each matched against all of the batch, in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.words = nn.Embedding(40, 14)
        self.mix = nn.MultiheadAttention(14, 2, batch_first=True)
        self.norm = nn.LayerNorm(14)
        self.of_image, self.of_text = nn.Linear(12, 10, bias=False), nn.Linear(14, 10, bias=False)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def image(self, pixels: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(pixels))).mean(dim=(2, 3))
        return F.normalize(self.of_image(x), dim=-1)

    def text(self, words: Tensor) -> Tensor:
        x = self.words(words)
        mixed, _ = self.mix(x, x, x, need_weights=False)
        return F.normalize(self.of_text(self.norm(x + mixed)[:, 0]), dim=-1)

    def forward(self, pixels: Tensor, words: Tensor) -> Tensor:
        logits = self.scale.exp().clamp(max=100.0) * self.image(pixels) @ self.text(words).t()
        at = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, at) + F.cross_entropy(logits.t(), at)) / 2


def two_towers() -> Training:
    torch.manual_seed(23)
    batches = [{"pixels": torch.randn(6, 3, 10, 10), "words": torch.randint(0, 40, (6, 7))} for _ in range(STEPS)]
    return Training(
        TwoTowers(), batches, lambda m, b: m(**b), settings={"lr": 1e-3, "weight_decay": 0.2, "foreach": True}
    )


PROGRAMS = [
    Program("diffusion unet", "diffusion", unet),
    Program("mixer", "mixer", mixer),
    Program("two towers", "contrastive", two_towers),
]
