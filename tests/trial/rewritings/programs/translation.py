"""Sentences to sentences: a recurrent encoder, attention that adds, forced words, penalties; then beams are scored without gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..running import Run

WORDS, SIZE = 9, 6


class Reader(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.words, self.cell = (
            on,
            nn.Embedding(WORDS, SIZE, padding_idx=0),
            nn.GRU(SIZE, SIZE, batch_first=True),
        )

    def forward(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        words = self.words(tokens)
        if self.on.way("stepwise with a mask"):
            h, found = torch.zeros(len(tokens), SIZE), []
            for at in range(tokens.shape[1]):
                entered = F.linear(words[:, at], self.cell.weight_ih_l0, self.cell.bias_ih_l0).chunk(3, 1)
                stayed = F.linear(h, self.cell.weight_hh_l0, self.cell.bias_hh_l0).chunk(3, 1)
                r, z = torch.sigmoid(entered[0] + stayed[0]), torch.sigmoid(entered[1] + stayed[1])
                n = torch.tanh(entered[2] + r * stayed[2])
                live = (at < lengths)[:, None]
                h = torch.where(live, z * h + (1 - z) * n, h)
                found.append(h * live)
            return torch.stack(found, 1), h
        if self.on.bug("padding read too"):
            found, last = self.cell(words)
            return found, last[0]
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        found, last = self.cell(packed)  # at padding read too
        return pad_packed_sequence(found, batch_first=True)[0], last[0]


class Speaker(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.words, self.cell = on, nn.Embedding(WORDS, SIZE), nn.GRUCell(2 * SIZE, SIZE)
        self.keys, self.asks, self.score = (
            nn.Linear(SIZE, SIZE),
            nn.Linear(SIZE, SIZE, bias=False),
            nn.Linear(SIZE, 1, bias=False),
        )
        self.join, self.out = nn.Linear(2 * SIZE, SIZE), nn.Linear(SIZE, WORDS)

    def step(self, word: Tensor, h: Tensor, read: Tensor, keys: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        h = h.relu() if self.on.bug("state bent") else h
        scores = self.score(torch.tanh(keys + self.asks(h).unsqueeze(1))).squeeze(-1)
        scores = scores if self.on.bug("padding asked") else scores.masked_fill(~mask, -1e9)
        if self.on.way("weights through logs"):
            weight = (scores - scores.logsumexp(1, keepdim=True)).exp()
        else:
            weight = scores.softmax(1)  # at padding asked
        seen = (
            torch.bmm(weight.unsqueeze(1), read).squeeze(1)
            if not self.on.way("seen by sum")
            else (weight.unsqueeze(-1) * read).sum(1)
        )
        h = self.cell(
            torch.cat([seen, self.words(word)] if self.on.bug("joined the other way") else [self.words(word), seen], 1),
            h,
        )
        return h, self.out(torch.tanh(self.join(torch.cat([h, seen], 1))))

    def forward(self, tokens: Tensor, read: Tensor, h: Tensor, mask: Tensor) -> Tensor:
        keys, found = self.keys(read), []
        for at in range(tokens.shape[1] - 1):
            word = tokens[:, 0] if self.on.bug("always the first word") else tokens[:, at]
            h, logits = self.step(word, h, read, keys, mask)
            found.append(logits)
        return torch.stack(found, 1)


class Model(nn.Module):
    def __init__(self, on: Run) -> None:
        super().__init__()
        self.on, self.reads, self.speaks = on, Reader(on), Speaker(on)

    def forward(self, tokens: Tensor, lengths: Tensor, wanted: Tensor) -> Tensor:
        read, last = self.reads(tokens, lengths)
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        logits = self.speaks(wanted, read, last.detach() if self.on.bug("last state detached") else last, mask)
        return self.loss(
            logits, wanted[:, : logits.shape[1]] if self.on.bug("asked for the same word") else wanted[:, 1:]
        )

    def loss(self, logits: Tensor, wanted: Tensor) -> Tensor:
        ignored = -100 if self.on.bug("padding counts") else 0
        if self.on.way("loss over what counts"):
            counts = wanted != ignored
            return F.cross_entropy(logits[counts], wanted[counts])  # at padding counts
        if self.on.way("loss weighted"):
            each = F.nll_loss(logits.log_softmax(-1).transpose(1, 2), wanted, reduction="none")
            counts = (wanted != ignored).to(each.dtype)
            return (each * counts).sum() / counts.sum()  # at padding counts
        return F.cross_entropy(logits.transpose(1, 2), wanted, ignore_index=ignored)  # at padding counts

    @torch.no_grad()
    def beams(self, tokens: Tensor, lengths: Tensor, width: int = 2) -> Tensor:
        """Return scores of the best beams after three words, by their lengths."""
        read, h = self.reads(tokens, lengths)
        mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).repeat_interleave(width, 0)
        read, h = read.repeat_interleave(width, 0), h.repeat_interleave(width, 0)
        keys, scores = self.speaks.keys(read), torch.tensor([0.0] + [-1e9] * (width - 1)).repeat(len(tokens))
        word = torch.ones(len(read), dtype=torch.long)
        for _ in range(3):
            h, logits = self.speaks.step(word, h, read, keys, mask)
            total = (scores[:, None] + logits.log_softmax(-1)).view(len(tokens), -1)
            best, index = total.topk(width, 1)
            if self.on.way("topk by sort"):
                ordered = total.sort(1, descending=True)
                best, index = ordered.values[:, :width], ordered.indices[:, :width]
            rows = (torch.arange(len(tokens))[:, None] * width + index // WORDS).flatten()
            scores, word = best.flatten(), (index % WORDS).flatten()
            h = h if self.on.bug("states not reordered") else h[rows]
        return scores.view(len(tokens), width) / (3.0 if self.on.bug("length without power") else ((5 + 3) / 6) ** 0.6)


def train(on: Run) -> None:
    torch.manual_seed(22)
    model = Model(on)
    tokens, wanted, lengths = (
        torch.randint(1, WORDS, (2, 3, 5)),
        torch.randint(1, WORDS, (2, 3, 5)),
        torch.tensor([5, 3, 4]),
    )
    tokens[:, 1, 3:], tokens[:, 2, 4:], wanted[:, 0, 3:] = 0, 0, 0
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01, etas=(0.5, 1.5 if on.bug("grows faster") else 1.2))
    with on.steps(model) as end_step:
        for at in range(2):
            optimizer.zero_grad()
            loss = model(tokens[at], lengths, wanted[at])
            loss.backward()
            on.keep(loss)
            on.keep_gradients(model)
            optimizer.step()  # at grows faster
            on.keep(model.beams(tokens[at], lengths))
            end_step()
    on.keep_weights(model)
