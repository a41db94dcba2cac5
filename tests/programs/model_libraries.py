"""Models of torchvision, timm, diffusers and PyTorch Geometric, trained for a step or sampled from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import Program


def _train(model: nn.Module, loss: Callable[[], Tensor]) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    found = loss()
    found.backward()
    optimizer.step()
    return [found.detach(), *model.parameters(), *model.buffers()]


def _classify(make: Callable[[], nn.Module], size: int) -> list[Tensor]:
    model = make().train()
    return _train(model, lambda: _class_loss(model(torch.randn(2, 3, size, size))))


def _class_loss(found: Any) -> Tensor:
    scores = found if isinstance(found, Tensor) else found[0]
    return F.cross_entropy(scores, torch.tensor([1, 2]))


def _vision(name: str, **how: Any) -> nn.Module:
    import torchvision

    made: nn.Module = getattr(torchvision.models, name)(weights=None, num_classes=5, **how)
    return made


def _timm(name: str, **how: Any) -> nn.Module:
    import timm

    made: nn.Module = timm.create_model(name, pretrained=False, num_classes=5, **how)
    return made


_TORCHVISION = {
    "resnet18": 32, "mobilenet_v3_small": 32, "shufflenet_v2_x0_5": 32, "squeezenet1_1": 48, "mnasnet0_5": 32, "densenet121": 32,
    "efficientnet_b0": 32, "regnet_y_400mf": 32, "googlenet": 64,
}  # fmt: skip
_TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet10t": (32, {}), "efficientnet_lite0": (32, {}), "mobilenetv4_conv_small": (32, {}), "ghostnet_050": (32, {}),
    "vit_tiny_patch16_224": (32, {"img_size": 32, "depth": 2}), "mixer_s32_224": (64, {"img_size": 64}),
    "convnext_atto": (32, {"depths": (1, 1, 1, 1)}), "swin_tiny_patch4_window7_224": (56, {"img_size": 56, "window_size": 7, "depths": (1, 1)}),
    "levit_128s": (224, {}), "xcit_nano_12_p16_224": (32, {"depth": 2}),
    "nfnet_l0": (32, {}),
}  # fmt: skip


def diffusers_unconditional() -> list[Tensor]:
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, attention_head_dim=8,
                        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"))  # fmt: skip
    scheduler, clean, noise, at = (
        DDPMScheduler(10),
        torch.randn(2, 3, 8, 8),
        torch.randn(2, 3, 8, 8),
        torch.tensor([3, 7]),
    )
    trained = _train(model, lambda: F.mse_loss(model(scheduler.add_noise(clean, noise, at), at).sample, noise))
    scheduler.set_timesteps(3)
    with torch.no_grad():
        image = noise
        for step in scheduler.timesteps:
            image = scheduler.step(model(image, step).sample, step, image).prev_sample
    return [*trained, image]


def diffusers_conditional() -> list[Tensor]:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=8, attention_head_dim=2,
                                 down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))  # fmt: skip
    return _train(model, lambda: model(torch.randn(1, 4, 8, 8), 5, torch.randn(1, 3, 8)).sample.square().mean())


def diffusers_autoencoder() -> list[Tensor]:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
                          norm_num_groups=4, layers_per_block=1)  # fmt: skip
    image = torch.randn(1, 3, 8, 8)

    def loss() -> Tensor:
        code = model.encode(image).latent_dist
        return F.mse_loss(model.decode(code.sample()).sample, image) + 1e-3 * code.kl().mean()

    return _train(model, loss)


def diffusers_transformer() -> list[Tensor]:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        norm_num_groups=4,
    )
    return _train(
        model, lambda: model(torch.randn(1, 4, 8, 8), torch.tensor([3]), torch.tensor([2])).sample.square().mean()
    )


def _graph() -> tuple[Tensor, Tensor]:
    return torch.randn(9, 6), torch.randint(0, 9, (2, 20))


def _geometric(layer: str, **how: Any) -> list[Tensor]:
    import torch_geometric.nn as layers

    x, edges = _graph()
    model = nn.ModuleList([getattr(layers, layer)(6, 8, **how), getattr(layers, layer)(8, 3, **how)])
    return _train(
        model, lambda: F.cross_entropy(model[1](F.relu(model[0](x, edges)), edges), torch.randint(0, 3, (9,)))
    )


def geometric_isomorphism() -> list[Tensor]:
    from torch_geometric.nn import GINConv, global_add_pool

    x, edges = _graph()
    model = nn.ModuleList([GINConv(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())), nn.Linear(8, 2)])
    members = torch.tensor([0] * 4 + [1] * 5)
    return _train(
        model, lambda: F.cross_entropy(model[1](global_add_pool(model[0](x, edges), members)), torch.tensor([0, 1]))
    )


def geometric_autoencoder() -> list[Tensor]:
    from torch_geometric.nn import VGAE, GCNConv

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.mean, self.spread = GCNConv(6, 8), GCNConv(8, 4), GCNConv(8, 4)

        def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
            y = self.first(x, edges).relu()
            return self.mean(y, edges), self.spread(y, edges)

    x, edges = _graph()
    model = VGAE(Encoder())
    return _train(model, lambda: model.recon_loss(model.encode(x, edges), edges) + model.kl_loss() / 9)


_LAYERS: dict[str, dict[str, Any]] = {
    "GCNConv": {}, "SAGEConv": {}, "GATv2Conv": {"dropout": 0.1}, "TransformerConv": {}, "ChebConv": {"K": 2}, "ARMAConv": {},
}  # fmt: skip

PROGRAMS: dict[str, Program] = {
    **{f"torchvision {name}": partial(_classify, partial(_vision, name), size) for name, size in _TORCHVISION.items()},
    **{f"timm {name}": partial(_classify, partial(_timm, name, **how), size) for name, (size, how) in _TIMM.items()},
    **{f"torch_geometric {name}": partial(_geometric, name, **how) for name, how in _LAYERS.items()},
    **{
        program.__name__.replace("_", " ", 1).replace("geometric ", "torch_geometric "): program
        for program in (
            diffusers_unconditional, diffusers_conditional, diffusers_autoencoder, diffusers_transformer, geometric_isomorphism,
            geometric_autoencoder,
        )
    },
}  # fmt: skip
