"""Part of a batch against the batch, and rows in another order; nothing is learned."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..tasks import UNCOUNTED, Batch, Run, Task

ROW = 1


def whole(on: Run, task: Task) -> None:
    """Run all rows at once; a trial of one row keeps only that row."""
    batch = task.batches[0]
    with on.steps(task.model) as end_step, torch.no_grad():
        output = task.model(**batch.inputs)
        end_step()
    on.keep(output[ROW])


def row(on: Run, task: Task) -> None:
    batch = task.batches[0]
    inputs = batch.rows(slice(ROW, ROW + 1)).inputs
    if on.bug("lengths of row 0"):
        inputs = {name: batch.inputs[name][:1] if name == "lengths" else one for name, one in inputs.items()}
    with on.steps(task.model) as end_step, torch.no_grad():
        if len(inputs) > 1 and on.bug("one input of the next row"):  # of one alone it is the next row, and whole
            last = list(inputs)[-1 if "lengths" not in inputs else 0]
            inputs = {**inputs, last: batch.inputs[last][ROW + 1 : ROW + 2]}
        output = task.model(**inputs)  # at lengths of row 0, one input of the next row
        if on.bug("divided by the batch"):
            output = output / len(batch)
        end_step()
    on.keep(output[0])


def unpadded(batch: Batch, which: int) -> Batch:
    """Return one row without its padding."""
    found = batch.rows(slice(which, which + 1))
    inputs = dict(found.inputs)
    for name, tokens in (("lengths", "tokens"), ("source_lengths", "source")):
        if name in inputs:
            inputs[tokens] = inputs[tokens][:, : int(inputs.pop(name)[0])]
    return Batch(inputs, found.labels)


def whole_of_a_row(on: Run, task: Task) -> None:
    """Run a padded batch; padding may leak."""
    batch = task.batches[0]
    inputs = dict(batch.inputs)
    length = int(inputs["lengths"][ROW])
    with on.steps(task.model) as end_step, torch.no_grad():
        if on.bug("mask forgotten"):
            del inputs["lengths"]
        elif on.bug("mask one too long"):
            inputs["lengths"] = inputs["lengths"] + 1
        elif on.bug("mask one too short"):
            inputs["lengths"] = inputs["lengths"] - 1
        elif on.bug("lengths of the rows before"):
            inputs["lengths"] = inputs["lengths"].roll(1)
        if on.bug("another mask forgotten"):
            inputs.pop("source_lengths", None)
        output = task.model(
            **inputs
        )  # at mask forgotten, mask one too long, mask one too short, lengths of the rows before, another mask forgotten
        end_step()
    on.keep(output[ROW][:length] if "pooled" not in task.can else output[ROW])


def padded_row(on: Run, task: Task) -> None:
    batch = unpadded(task.batches[0], ROW)
    with on.steps(task.model) as end_step, torch.no_grad():
        output = task.model(**batch.inputs)
        end_step()
    on.keep(output[0])


def scores(on: Run, task: Task) -> None:
    """Say the losses of all rows, in their order."""
    batch = task.batches[0]
    with on.steps(task.model) as end_step, torch.no_grad():
        output = task.model(**batch.inputs)
        losses = losses_of(output, batch.labels)
        end_step()
    on.keep(losses)


def losses_of(output: Tensor, labels: Tensor) -> Tensor:
    """Return a loss of each row."""
    if output.shape == labels.shape:
        wanted = labels.clamp_min(0).to(output.dtype)  # at the labels
        return F.binary_cross_entropy_with_logits(output, wanted, reduction="none").sum(1)  # at the labels
    found = F.cross_entropy(output.flatten(0, -2), labels.flatten(), reduction="none")  # at the labels
    return found.view(len(labels), -1).sum(1)


def reordered(on: Run, task: Task) -> None:
    batch = task.batches[0]
    order = torch.tensor([2, 0, 3, 1])
    back = order.argsort()
    with on.steps(task.model) as end_step, torch.no_grad():
        moved = batch.rows(order)
        labels = batch.labels if on.bug("labels not reordered") else moved.labels
        inputs = dict(moved.inputs)
        if on.bug("one input not reordered"):
            last = list(inputs)[-1]
            inputs[last] = batch.inputs[last]
        output = task.model(**inputs)  # at one input not reordered
        losses = losses_of(output, labels)  # at labels not reordered
        if on.bug("not put back"):
            losses = losses * 1.0
        elif on.bug("reordered twice"):
            losses = losses[order]
        elif on.bug("shifted when put back"):
            losses = losses[back].roll(1)
        else:
            losses = losses[back]  # at not put back
        end_step()
    on.keep(losses)


def bucketed(on: Run, task: Task) -> None:
    """Sort rows by length, run them in two buckets of fewer padded tokens, and put their losses back."""
    batch = task.batches[0]
    order = batch.inputs["lengths"].argsort(descending=True)
    found = []
    with on.steps(task.model) as end_step, torch.no_grad():
        for at in (0, 2):
            part = batch.rows(order[at : at + 2])
            longest = int(part.inputs["lengths"].max()) - (1 if at and on.bug("bucket cut too short") else 0)
            inputs = {**part.inputs, "tokens": part.inputs["tokens"][:, :longest]}
            labels = part.labels[:, :longest] if "pooled" not in task.can else part.labels
            if on.bug("lengths of the first bucket"):
                inputs["lengths"] = batch.inputs["lengths"][order[:2]].clamp_max(longest)
            output = task.model(**inputs)  # at bucket cut too short, lengths of the first bucket
            found.append(losses_of(output, labels))
            if on.bug("rows swapped in a bucket") and at:
                found[-1] = found[-1].flip(0)
        losses = torch.cat(found[::-1] if on.bug("buckets swapped") else found)
        losses = losses if on.bug("left in buckets") else losses[order.argsort()]
        end_step()
    on.keep(losses)


def padded(on: Run, task: Task) -> None:
    """Learn from padded rows once."""
    batch = task.batches[0]
    with on.steps(task.model) as end_step:
        output = task.model(**batch.inputs)
        loss = task.loss(output, batch.labels) / batch.counted
        loss.backward()
        end_step()
    on.keep(loss)
    on.keep_gradients(task.model)


def packed(on: Run, task: Task) -> None:
    """Learn from the same rows in one, without padding; each sees itself alone."""
    batch = task.batches[0]
    lengths = batch.inputs["lengths"].tolist()
    join = lambda t: torch.cat([one[:length] for one, length in zip(t, lengths, strict=True)])[None]  # noqa: E731
    tokens, labels = join(batch.inputs["tokens"]), join(batch.labels)
    with on.steps(task.model) as end_step:
        positions = torch.cat([torch.arange(n) for n in lengths])[None]
        if on.bug("positions run on"):
            positions = torch.arange(sum(lengths))[None]
        document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        if on.bug("boundary one late"):
            document = document.roll(1)
            document[0] = 0
        mask = (document[:, None] == document)[None, None]
        if on.bug("documents see one another"):
            mask = torch.ones_like(mask)
        if "rotary" in task.can:
            mask = mask & torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
        if on.bug("labels one early"):
            labels = labels.roll(-1, 1)
        counted = (labels != UNCOUNTED).sum()
        if on.bug("divided by rows and length"):
            counted = torch.tensor(batch.labels.numel())
        output = task.model(
            tokens=tokens, positions=positions, mask=mask
        )  # at positions run on, boundary one late, documents see one another
        loss = task.loss(output, labels) / counted  # at labels one early, divided by rows and length
        loss.backward()
        end_step()
    on.keep(loss)
    on.keep_gradients(task.model)


def packed_sequence(on: Run, task: Task) -> None:
    """Learn from rows of torch's PackedSequence, with the layers of a recurrent net called one by one."""
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    batch, model = task.batches[0], task.model
    lengths = batch.inputs["lengths"]
    with on.steps(model) as end_step:
        if on.bug("packed one short"):
            lengths = (lengths - 1).clamp_min(1)
        x = model.words(batch.inputs["tokens"])
        for layer in model.layers:
            rows = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)  # at packed one short
            y, _ = pad_packed_sequence(layer.gru(rows)[0], batch_first=True, total_length=x.shape[1])
            if on.bug("rows left sorted"):
                y = y[lengths.argsort(descending=True)]
            x = y if on.bug("residual forgotten when packed") else x + y
        output = model.head(model.norm(x))
        loss = task.loss(output, batch.labels) / batch.counted
        loss.backward()
        end_step()
    on.keep(loss)
    on.keep_gradients(model)


def left_padded(on: Run, task: Task) -> None:
    """Pad the rows on the left, as engines do for generation, and say each row's losses."""
    batch = task.batches[0]
    tokens, lengths = batch.inputs["tokens"], batch.inputs["lengths"]
    longest = tokens.shape[1]
    turn = (torch.arange(longest) + lengths[:, None]) % longest
    with on.steps(task.model) as end_step, torch.no_grad():
        shifted, labels = tokens.gather(1, turn), batch.labels.gather(1, turn)
        before = (longest - lengths)[:, None]
        positions = torch.arange(longest) - before
        if on.bug("positions not shifted"):
            positions = torch.arange(longest).expand_as(positions)
        inside = torch.arange(longest) >= (before - 1 if on.bug("a padded token is seen") else before)
        if on.bug("mask of the right side"):
            inside = torch.arange(longest) < lengths[:, None]
        inside = inside[:, None, None] | torch.eye(longest, dtype=torch.bool)
        if "rotary" in task.can:
            inside = inside & torch.ones(longest, longest, dtype=torch.bool).tril()
        output = task.model(
            tokens=shifted, positions=positions.clamp_min(0), mask=inside
        )  # at positions not shifted, a padded token is seen, mask of the right side
        if on.bug("labels not turned"):
            labels = batch.labels
        losses = losses_of(output, labels)  # at labels not turned
        end_step()
    on.keep(losses)


KINDS = {
    "a row": (row, whole, ""),
    "a padded row": (whole_of_a_row, padded_row, "pad"),
    "rows reordered": (reordered, scores, ""),
    "rows in buckets": (bucketed, scores, "pad"),
    "rows padded on the left": (left_padded, scores, "pack"),
    "packed rows": (packed, padded, "pack"),
    "a packed sequence": (packed_sequence, padded, "gru"),
}
