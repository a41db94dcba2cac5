"""Models of the kinds that people train, small, each with the loss of a batch of its own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Trained(nn.Module):
    """A model that knows its loss."""

    def loss(self) -> Tensor:
        raise NotImplementedError


class Vision(Trained):
    """A residual network of two blocks."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        h = self.stem(images)
        return self.head(F.relu(h + self.block(h)).mean((2, 3)))

    def loss(self) -> Tensor:
        return F.cross_entropy(self(torch.randn(6, 3, 8, 8)), torch.randint(0, 5, (6,)))


class Tagger(Trained):
    """Words through an LSTM, one tag for each."""

    def __init__(self, tags: int = 4) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(30, 12), nn.LSTM(12, 10, batch_first=True), nn.Linear(10, tags)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(words))[0])

    def loss(self) -> Tensor:
        return F.cross_entropy(self(torch.randint(0, 30, (4, 7))).flatten(0, 1), torch.randint(0, 4, (28,)))


class Autoencoder(Trained):
    """A variational autoencoder of vectors in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.spread = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decode = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.silu(self.encode(x))
        mean, spread = self.mean(h), self.spread(h)
        return self.decode(mean + torch.randn_like(mean) * (spread / 2).exp()), mean, spread

    def parts(self) -> tuple[Tensor, Tensor]:
        x = torch.rand(8, 12)
        found, mean, spread = self(x)
        kl = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(found, x), kl

    def loss(self) -> Tensor:
        rebuilt, kl = self.parts()
        return rebuilt + 0.1 * kl


class ActorCritic(Trained):
    """A policy and a value that share a trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.policy, self.value = nn.Linear(5, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.trunk(states))
        return self.policy(h), self.value(h).squeeze(-1)

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        states, actions, returns = torch.randn(10, 5), torch.randint(0, 3, (10,)), torch.randn(10)
        scores, value = self(states)
        chosen = torch.distributions.Categorical(logits=scores)
        policy = -(chosen.log_prob(actions) * (returns - value.detach())).mean()
        return policy, F.mse_loss(value, returns), chosen.entropy().mean()

    def loss(self) -> Tensor:
        policy, value, entropy = self.parts()
        return policy + 0.5 * value - 0.01 * entropy


class Graph(Trained):
    """Messages along edges, added up at the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 16)])
        self.out = nn.Linear(16, 1)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            sent = layer(nodes)  # bug
            nodes = torch.zeros_like(sent).index_add(0, edges[1], F.elu(sent)[edges[0]]) + sent
        return self.out(nodes).squeeze(-1)

    def loss(self) -> Tensor:
        return F.mse_loss(self(torch.randn(9, 6), torch.randint(0, 9, (2, 20))), torch.randn(9))


class Clicks(Trained):
    """Tables of what a user has seen, crossed with numbers: a recommender."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(20, 6, mode="sum") for _ in range(2)])
        self.numbers, self.top = nn.Linear(4, 6), nn.Linear(9, 1)

    def forward(self, numbers: Tensor, seen: Tensor) -> Tensor:
        rows = torch.stack([self.numbers(numbers), *(table(seen) for table in self.tables)], 1)
        crossed = (rows @ rows.mT).flatten(1)
        return self.top(crossed)

    def loss(self) -> Tensor:
        wanted = torch.randint(0, 2, (8, 1)).float()
        return F.binary_cross_entropy_with_logits(self(torch.randn(8, 4), torch.randint(0, 20, (8, 3))), wanted)


class Denoiser(Trained):
    """A small U-Net that predicts noise, given a time."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.down = nn.Linear(8, 8), nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.middle, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.up, self.out = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(9, 1, 3, padding=1)

    def embedded(self, times: Tensor) -> Tensor:
        rates = torch.exp(-math.log(10000.0) * torch.arange(4) / 4)
        angles = times[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], -1)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        h = self.down(x) + self.time(self.embedded(times))[:, :, None, None]
        h = F.silu(self.norm(self.middle(h)))
        return self.out(torch.cat([self.up(h), x], 1))

    def loss(self) -> Tensor:
        noise = torch.randn(4, 1, 8, 8)
        return F.mse_loss(self(torch.randn(4, 1, 8, 8) + noise, torch.rand(4) * 100), noise)


class Pairs(Trained):
    """Two encoders whose results for one thing must meet: a contrastive model."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures, self.texts = nn.Linear(12, 8), nn.Linear(6, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def scores(self) -> Tensor:
        one, two = (
            F.normalize(self.pictures(torch.randn(6, 12)), dim=-1),
            F.normalize(self.texts(torch.randn(6, 6)), dim=-1),
        )
        return self.scale.exp() * one @ two.T

    def loss(self) -> Tensor:
        scores, labels = self.scores(), torch.arange(6)
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2


class Translator(Trained):
    """An encoder and a decoder of torch's own layers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Parameter(torch.randn(9, 16) * 0.1)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True), 2)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, dropout, batch_first=True), 1)
        self.head = nn.Linear(16, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        memory = self.encoder(self.words(source) + self.places[: source.shape[1]])
        return self.head(self.decoder(self.words(target) + self.places[: target.shape[1]], memory, mask))

    def loss(self) -> Tensor:
        source, target = torch.randint(0, 20, (3, 9)), torch.randint(0, 20, (3, 7))
        return F.cross_entropy(self(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())


class Pretrained(Trained):
    """One of transformers' models, with its own loss."""

    def __init__(self, name: str = "gpt2") -> None:
        super().__init__()
        import transformers as t

        small: dict[str, Any] = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        half = {**small, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        make = {
            "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**small, n_embd=16, n_layer=2, n_head=2, n_positions=16)),
            "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**half, num_key_value_heads=1)),
            "bert": lambda: t.BertForMaskedLM(t.BertConfig(**half)),
            "t5": lambda: t.T5ForConditionalGeneration(
                t.T5Config(**small, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
            ),
        }
        self.inner = make[name]()

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(input_ids=ids, labels=ids).loss

    def loss(self) -> Tensor:
        return self(torch.randint(3, 40, (3, 10)))
