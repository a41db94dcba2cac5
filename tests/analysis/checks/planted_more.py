"""More programs with a planted bug each, as they are met: other layers, optimizers, ways to write the same mistake."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .loops import batch, net, recording
from .planted import TwoParts, classify, planted, train

# -- gradients ----------------------------------------------------------------------------------------------------------


@planted("no-gradient")
def convolution_detached_before_the_pool(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv1d(2, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(x).relu().detach()  # bug
            return self.head(h.mean(-1))

    model = Net()
    train(path, model, lambda: F.cross_entropy(model(torch.randn(16, 2, 9)), batch()[1]))


@planted("no-gradient")
def gate_detached(path: Path) -> None:
    class Net(TwoParts):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(6, 8)

        def forward(self, x: Tensor) -> Tensor:
            gate = self.gate(x).sigmoid().detach()  # bug
            return self.head(self.encoder(x) * gate)

    model = Net()
    train(path, model, lambda: classify(model))


@planted("no-gradient")
def recurrent_state_detached(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRUCell(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            state = self.cell(x).detach()  # bug
            return self.head(state)

    model = Net()
    train(path, model, lambda: classify(model))


@planted("gradient-dropped")
def gradients_set_to_none_by_hand(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for _ in range(2):
            classify(model).backward()
            for parameter in model.parameters():
                parameter.grad = None
            optimizer.step()  # bug
            dump.step()


@planted("gradient-dropped")
def cleared_in_place_before_the_step(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with recording(path, model) as dump:
        for _ in range(2):
            classify(model).backward()
            optimizer.zero_grad(set_to_none=False)  # bug
            optimizer.step()  # bug
            dump.step()


@planted("gradient-dropped")
def cleared_between_accumulated_batches_and_the_step(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            for _ in range(2):
                classify(model).backward()
            optimizer.zero_grad()  # bug
            optimizer.step()
            dump.step()


@planted("gradient-dropped")
def cleared_before_the_step_of_rmsprop(path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.RMSprop(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            classify(model).backward()
            model.zero_grad()
            optimizer.step()  # bug
            dump.step()


@planted("gradient-applied-twice")
def two_optimizers_of_the_whole(path: Path) -> None:
    model = net()
    optimizers = [torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), 0.1)]
    with recording(path, model) as dump:
        for _ in range(2):
            classify(model).backward()
            for optimizer in optimizers:
                optimizer.step()  # bug
            model.zero_grad()
            dump.step()


@planted("gradient-applied-twice")
def stepped_in_the_loop_and_after_it(path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with recording(path, model):
        for _ in range(2):
            optimizer.zero_grad()
            classify(model).backward()
            optimizer.step()
        optimizer.step()  # bug


@planted("gradient-applied-twice")
def stepped_by_a_helper_too(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def finish() -> None:
        optimizer.step()  # bug
        optimizer.zero_grad()

    with recording(path, model) as dump:
        for _ in range(2):
            classify(model).backward()
            optimizer.step()
            finish()
            dump.step()


@planted("no-optimizer")
def norm_scale_left_out(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))

    def loss() -> Tensor:
        x, y = batch()
        return F.cross_entropy(model(x), y)  # bug

    train(path, model, loss, torch.optim.SGD([p for p in model.parameters() if p is not model[1].weight], 0.1))


@planted("stale-gradient")
def cleared_every_second_step(path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with recording(path, model) as dump:
        for number in range(4):
            classify(model).backward()
            optimizer.step()  # bug
            if number % 2:
                optimizer.zero_grad()
            dump.step()


@planted("stale-gradient")
def one_group_is_never_cleared(path: Path) -> None:
    model = TwoParts()
    first, second = (torch.optim.Adam(part.parameters()) for part in (model.encoder, model.head))
    with recording(path, model) as dump:
        for _ in range(3):
            first.zero_grad()
            classify(model).backward()
            first.step()
            second.step()  # bug
            dump.step()


@planted("stale-gradient")
def never_cleared_with_lbfgs_like_loop(path: Path) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adagrad(model.parameters())
    with recording(path, model):
        for _ in range(3):
            classify(model).backward()
            optimizer.step()  # bug


@planted("clip-after-step")
def clipped_by_hand_after_the_step(path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            classify(model).backward()
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01, foreach=False)  # bug
            optimizer.zero_grad()
            dump.step()


@planted("clip-after-step")
def one_part_clipped_after_the_step(path: Path) -> None:
    model = TwoParts()
    optimizer = torch.optim.Adam(model.parameters())
    with recording(path, model) as dump:
        for _ in range(2):
            optimizer.zero_grad()
            classify(model).backward()
            optimizer.step()
            nn.utils.clip_grad_norm_(model.head.parameters(), 0.01)  # bug
            dump.step()


# -- losses -------------------------------------------------------------------------------------------------------------


@planted("detached-term")
def auxiliary_loss_by_its_data(path: Path) -> None:
    model = TwoParts()

    def loss() -> Tensor:
        main = classify(model)
        auxiliary = model.encoder(batch()[0]).square().mean().data
        return main + 0.01 * auxiliary  # bug

    train(path, model, loss)


@planted("softmax-of-one")
def sigmoid_meant_softmax_of_channels(path: Path) -> None:
    model = nn.Conv1d(2, 1, 3)

    def loss() -> Tensor:
        return F.mse_loss(model(torch.randn(4, 2, 9)).softmax(1), torch.rand(4, 1, 7))  # bug

    train(path, model, loss)


@planted("softmax-of-one")
def module_softmax_of_one(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 1), nn.Softmax(dim=1))
    train(path, model, lambda: F.binary_cross_entropy(model(batch()[0]), torch.rand(16, 1)))  # bug


@planted("softmax-of-one")
def log_softmax_of_one(path: Path) -> None:
    model = nn.Linear(6, 1)
    labels = torch.zeros(16, dtype=torch.long)
    train(path, model, lambda: F.nll_loss(F.log_softmax(model(batch()[0]), 1), labels))  # bug


@planted("softmax-twice")
def nll_of_log_softmax_of_softmax(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Softmax(1))
    train(path, model, lambda: F.nll_loss(F.log_softmax(model(batch()[0]), 1), batch()[1]))  # bug


@planted("softmax-twice")
def cross_entropy_of_softmax_of_images(path: Path) -> None:
    model = nn.Conv2d(2, 3, 3)

    def loss() -> Tensor:
        found = model(torch.randn(2, 2, 6, 6)).softmax(1)
        return F.cross_entropy(found, torch.randint(0, 3, (2, 4, 4)))  # bug

    train(path, model, loss)


@planted("softmax-twice")
def smoothed_cross_entropy_of_probabilities(path: Path) -> None:
    model = nn.Linear(6, 5)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    train(path, model, lambda: loss(torch.softmax(model(batch()[0]), dim=1), batch()[1]))  # bug


@planted("targets-outside")
def pixels_of_255(path: Path) -> None:
    model = nn.Linear(6, 4)
    pixels = torch.randint(0, 256, (16, 4)).float()
    train(path, model, lambda: F.binary_cross_entropy_with_logits(model(batch()[0]), pixels))  # bug


@planted("targets-outside")
def class_numbers_as_probabilities(path: Path) -> None:
    model = nn.Linear(6, 1)
    labels = torch.arange(16).remainder(3).float().unsqueeze(1)
    train(path, model, lambda: F.binary_cross_entropy_with_logits(model(batch()[0]), labels, reduction="sum"))  # bug


@planted("broadcast-loss")
def l1_of_column_and_row(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    train(path, model, lambda: F.l1_loss(model(batch()[0]), torch.randn(16)))  # bug


@planted("broadcast-loss")
def huber_of_column_and_row(path: Path) -> None:
    model = nn.Linear(6, 1)
    train(path, model, lambda: F.huber_loss(model(batch()[0]), torch.randn(16)))  # bug


@planted("broadcast-loss")
def squared_by_pow(path: Path) -> None:
    model = nn.Linear(6, 1)
    target = torch.randn(16)
    train(path, model, lambda: torch.pow(model(batch()[0]) - target, 2).sum())  # bug


# -- layers -------------------------------------------------------------------------------------------------------------


@planted("dropout-in-eval")
def alpha_dropout_without_its_flag(path: Path) -> None:
    class Net(TwoParts):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.dropout(self.encoder(x), p=0.5, training=True))  # bug

    model = Net().eval()
    with torch.no_grad(), recording(path, model):
        model(batch()[0])


@planted("dropout-in-eval")
def dropout_of_pictures_without_its_flag(path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout2d(self.conv(x), 0.4)  # bug

    model = Net().eval()
    with torch.inference_mode(), recording(path, model):
        model(torch.randn(2, 2, 6, 6))


@planted("masked-row")
def softmax_over_keys_that_are_all_padding(path: Path) -> None:
    model = nn.Linear(6, 6)

    def loss() -> Tensor:
        x = model(torch.randn(2, 4, 6))
        padding = torch.tensor([[False, False, True, True], [True, True, True, True]])
        scores = (x @ x.mT).masked_fill(padding[:, None], float("-inf"))
        return (torch.softmax(scores, -1) @ x).sum()  # bug

    train(path, model, loss, steps=1)


@planted("masked-row")
def additive_mask_of_infinities(path: Path) -> None:
    model = nn.Linear(6, 6)

    def loss() -> Tensor:
        x = model(torch.randn(3, 4, 6))
        mask = torch.zeros(4, 4)
        mask[2] = -torch.inf
        return ((x @ x.mT + mask).softmax(dim=-1) @ x).square().sum()  # bug

    train(path, model, loss, steps=1)


@planted("dead-layer")
def relu_after_a_negative_shift(path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(6, 8), "b": nn.Linear(8, 3)})

    def loss() -> Tensor:
        x, y = batch()
        h = F.relu(model["a"](x) - 40)  # bug
        return F.cross_entropy(model["b"](h), y)

    train(path, model, loss)


@planted("dead-layer")
def relu_of_minus_a_square(path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(6, 8), "b": nn.Linear(8, 3)})

    def loss() -> Tensor:
        x, y = batch()
        h = (-model["a"](x).square() - 1e-3).clamp(min=-9).relu()  # bug
        return F.cross_entropy(model["b"](h), y)

    train(path, model, loss)


# -- precision and memory -----------------------------------------------------------------------------------------------


@planted("half-index")
def positions_in_float16(path: Path) -> None:
    model = nn.Embedding(5000, 4)

    def loss() -> Tensor:
        at = torch.arange(4096).to(torch.float16).to(torch.long)  # bug
        return model(at).square().mean()

    train(path, model, loss, steps=1)


@planted("sum-stalls")
def running_mean_weight_in_bfloat16(path: Path) -> None:
    model, seen = net(), torch.tensor(512.0, dtype=torch.bfloat16)

    def loss() -> Tensor:
        torch.add(seen, 1.0, out=seen)  # bug
        return classify(model)

    train(path, model, loss, steps=1)


@planted("saved-overwritten")
def result_of_exp_written_through_data(path: Path) -> None:
    model = TwoParts()

    def loss() -> Tensor:
        x, y = batch()
        h = model.encoder(x).exp()
        found = F.cross_entropy(model.head(h.tanh()), y)
        h.data.zero_()  # bug
        return found

    train(path, model, loss)


@planted("saved-overwritten")
def input_of_a_linear_reused(path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def loss() -> Tensor:
        x, y = batch()
        found = F.cross_entropy(model(x), y)
        x.data.normal_()  # bug
        return found

    train(path, model, loss)
