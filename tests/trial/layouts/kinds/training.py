"""One batch against the same in parts: micro-batches, workers, stages; two steps are learned from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..tasks import Batch, Run, Task


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def finish(on: Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """End a step of learning."""
    on.keep_gradients(model)
    optimizer.step()
    optimizer.zero_grad()


def learned(on: Run, task: Task, batches: list[Batch]) -> None:
    optimizer = optimizer_of(task.model)
    with on.steps(task.model) as end_step:
        for batch in batches:
            loss = task.mean(batch)
            loss.backward()
            on.keep(loss)
            finish(on, task.model, optimizer)
            end_step()
    on.keep_weights(task.model)


def whole_equal(on: Run, task: Task) -> None:
    learned(on, task, task.equal)


def whole_unequal(on: Run, task: Task) -> None:
    learned(on, task, task.batches)


def equal_micro_batches(on: Run, task: Task) -> None:
    """Two micro-batches of two rows; each one's mean is divided by two."""
    optimizer, model = optimizer_of(task.model), task.model
    with on.steps(model) as end_step:
        for batch in task.equal:
            total = torch.zeros(())
            for at in (0, 2):
                part = batch.rows(slice(0, 2) if on.bug("the first half twice") else slice(at, at + 2))
                output = model(**part.inputs)  # at the first half twice
                labels = batch.labels[:2] if on.bug("labels of the first half") else part.labels
                loss = task.loss(output, labels) / part.counted  # at labels of the first half
                if on.bug("divided by four"):
                    loss = loss / 4
                elif not on.bug("not divided by their number"):
                    loss = loss / 2  # at not divided by their number
                if on.bug("cleared for each") and at:
                    optimizer.zero_grad()
                loss.backward()  # at cleared for each
                if on.bug("clipped each time"):
                    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                if on.bug("stepped each time") and not at:
                    optimizer.step()
                total = total + loss.detach()
            on.keep(total)
            finish(on, model, optimizer)  # at stepped each time
            end_step()
    on.keep_weights(model)


def micro_batches_by_tokens(on: Run, task: Task) -> None:
    """A micro-batch a row, as a loader gives them; sums are divided by all that counts."""
    optimizer, model = optimizer_of(task.model), task.model
    loaded = [[batch.rows(slice(at, at + 1)).clone() for at in range(4)] for batch in task.batches]
    counts = [batch.counted.clone() for batch in task.batches]
    with on.steps(model) as end_step:
        for step, parts in enumerate(loaded):
            total = torch.zeros(())
            for at, part in enumerate(parts):
                if on.bug("an empty one left out") and at == 3:
                    continue
                count = counts[step]
                if on.bug("mean of means"):
                    count = part.counted.clamp_min(1) * 4
                elif on.bug("divided by padded tokens too"):
                    count = torch.tensor(part.labels.numel() * 4)
                elif on.bug("counts of the step before"):
                    count = counts[step - 1] + 3 * (step == 0)
                elif on.bug("one too many counted"):
                    count = count + 1
                loss = (
                    task.loss(model(**part.inputs), part.labels) / count
                )  # at mean of means, divided by padded tokens too, counts of the step before, one too many counted
                loss.backward()  # at an empty one left out
                total = total + loss.detach()
            on.keep(total)
            finish(on, model, optimizer)
            end_step()
    on.keep_weights(model)


def workers(on: Run, task: Task) -> None:
    """Two workers in one process: each one's gradients of its half, averaged by hand."""
    optimizer, model = optimizer_of(task.model), task.model
    parameters = list(model.parameters())
    stale: list[Tensor] = []
    with on.steps(model) as end_step:
        for batch in task.equal:
            halves = [batch.rows(slice(at, at + 2)) for at in (0, 2)]
            if on.bug("both have the same rows"):
                halves[1] = halves[0]
            losses = [task.mean(half) for half in halves]  # at both have the same rows
            ours, theirs = ([*torch.autograd.grad(loss, parameters)] for loss in losses)
            if on.bug("gradients of the step before"):
                ours[-1], stale = stale[0] if stale else ours[-1], [ours[-1].clone()]
            for number, p in enumerate(parameters):
                if on.bug("one gradient not reduced") and number == 2:
                    p.grad = ours[number]
                    continue
                both = ours[number] + theirs[number]  # at gradients of the step before, one gradient not reduced
                p.grad = both if on.bug("summed, not averaged") else both / 2
                if on.bug("averaged twice"):
                    p.grad = p.grad / 2
            on.keep((losses[0] + losses[1]) / 2)
            finish(on, model, optimizer)
            end_step()
    on.keep_weights(model)


def stages(on: Run, task: Task) -> None:
    """A pipeline in one process: two stages, two micro-batches, gradients handed back at the boundary."""
    optimizer, model = optimizer_of(task.model), task.model
    with on.steps(model) as end_step:
        for batch in task.equal:
            parts = [batch.rows(slice(at, at + 2)) for at in (0, 2)]
            sent = [model.first(**part.inputs) for part in parts]
            taken = [one.detach().requires_grad_() for one in sent]
            if on.bug("activations of the other micro-batch"):
                taken = [taken[1], taken[0]]
            total = torch.zeros(())
            for part, one in zip(parts, taken, strict=True):
                output = model.second(one, **part.inputs)  # at activations of the other micro-batch
                loss = task.loss(output, part.labels) / batch.counted
                loss.backward()
                total = total + loss.detach()
            grads = [one.grad for one in taken]
            if on.bug("gradients of the other micro-batch"):
                grads = grads[::-1]
            for number, (one, grad) in enumerate(zip(sent, grads, strict=True)):
                assert grad is not None
                if on.bug("boundary cut") or (on.bug("last one not handed back") and number):
                    continue
                if on.bug("scaled at the boundary"):
                    grad = grad / 2
                one.backward(grad)  # at gradients of the other micro-batch, boundary cut, last one not handed back
            on.keep(total)
            finish(on, model, optimizer)
            end_step()
    on.keep_weights(model)


def bucketed_training(on: Run, task: Task) -> None:
    """Micro-batches of rows that are alike in length, cut to the longest of them."""
    optimizer, model = optimizer_of(task.model), task.model
    with on.steps(model) as end_step:
        for batch in task.batches:
            order = batch.inputs["lengths"].argsort()
            total = torch.zeros(())
            for at in (0, 2):
                part = batch.rows(order[at : at + 2])
                longest = int(part.inputs["lengths"].max()) - int(on.bug("a token cut off"))
                inputs = {**part.inputs, "tokens": part.inputs["tokens"][:, :longest]}
                inputs["lengths"] = inputs["lengths"].clamp_max(longest)
                labels = part.labels if "pooled" in task.can else part.labels[:, :longest]
                if on.bug("labels in the old order"):
                    labels = batch.labels[at : at + 2, : labels.shape[1]]
                output = model(**inputs)  # at a token cut off
                count = part.counted * 2 if on.bug("each bucket's mean") else batch.counted
                loss = task.loss(output, labels) / count  # at each bucket's mean, labels in the old order
                loss.backward()
                total = total + loss.detach()
            on.keep(total)
            finish(on, model, optimizer)
            end_step()
    on.keep_weights(model)


KINDS = {
    "equal micro-batches": (equal_micro_batches, whole_equal, ""),
    "micro-batches by tokens": (micro_batches_by_tokens, whole_unequal, ""),
    "workers in one process": (workers, whole_equal, ""),
    "stages by hand": (stages, whole_equal, ""),
    "learned from in buckets": (bucketed_training, whole_unequal, "pad"),
}
