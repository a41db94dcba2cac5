"""Reinforcement learning: proximal policy optimisation with a value head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..training import STEPS, Program, Training


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.policy, self.value = nn.Linear(24, 4), nn.Linear(24, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(state)
        return self.policy(x), self.value(x).squeeze(-1)


def advantages(rewards: Tensor, values: Tensor, gamma: float = 0.97, smooth: float = 0.9) -> Tensor:
    """Return generalised advantages, from the last step to the first."""
    found = torch.zeros_like(rewards)
    last = torch.zeros(rewards.shape[1], device=rewards.device)
    for t in reversed(range(len(rewards))):
        after = values[t + 1] if t + 1 < len(values) else torch.zeros_like(last)
        last = rewards[t] + gamma * after - values[t] + gamma * smooth * last
        found[t] = last
    return found


def _ppo_loss(model: ActorCritic, batch: dict[str, Tensor]) -> Tensor:
    scores, values = model(batch["state"])
    logs = F.log_softmax(scores, dim=-1)
    chosen = logs.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    gain = advantages(batch["reward"], values.detach())
    back = gain + values.detach()
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    ratio = torch.exp(chosen - batch["log_odds"])
    policy = -torch.min(ratio * gain, torch.clamp(ratio, 0.8, 1.2) * gain).mean()
    entropy = -(logs.exp() * logs).sum(-1).mean()
    return policy + 0.5 * F.smooth_l1_loss(values, back) - 0.01 * entropy


def ppo() -> Training:
    torch.manual_seed(41)
    batches = [
        {
            "state": torch.randn(7, 5, 6),
            "action": torch.randint(0, 4, (7, 5)),
            "reward": torch.randn(7, 5),
            "log_odds": -1.4 + 0.4 * torch.randn(7, 5),
        }
        for _ in range(STEPS)
    ]
    return Training(
        ActorCritic(), batches, _ppo_loss, torch.optim.Adam, {"lr": 3e-3, "eps": 1e-5, "foreach": True}, clip=0.5
    )


PROGRAMS = [Program("ppo", "reinforcement", ppo)]
