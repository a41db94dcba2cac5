"""Bugs: in the program, in its data, its weights, its backward, its optimizer, and in single kernels.

`guilty` is what the first cause must match, as "call|module|phase": the call that is wrong, or, where a call is missing, the first
that does without its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .devices import Spoil, coarse, element, scaled, swapped, tail, unwritten
from .examine import Case, Change, both
from .honest import form, setting
from .programs import Run


def _unchanged(run: Run) -> None:
    pass


def part(path: str, **values: Any) -> Change:
    """Set attributes of the module at a path."""

    def change(run: Run) -> None:
        module = run.model.get_submodule(path)
        for name, value in values.items():
            assert hasattr(module, name), (path, name)
            setattr(module, name, value(getattr(module, name)) if callable(value) else value)

    return change


def times(factor: float) -> Callable[[float], float]:
    return lambda value: value * factor


def weight(path: str, factor: float) -> Change:
    """A weight that was scaled before it was rounded to its dtype."""

    def change(run: Run) -> None:
        with torch.no_grad():
            parameter = run.model.get_parameter(path)
            unit = torch.finfo(parameter.dtype).eps / 4
            noise = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
            parameter.copy_(parameter.double() * (1 + unit * noise) * factor)

    return change


def hook(path: str, edit: Callable[[Tensor], Tensor]) -> Change:
    """Edit what a module returns, in the program."""

    def change(run: Run) -> None:
        def after(module: nn.Module, args: Any, result: Any) -> Any:
            return (edit(result[0]), *result[1:]) if isinstance(result, tuple) else edit(result)

        run.model.get_submodule(path).register_forward_hook(after)

    return change


def gradient_hook(path: str, edit: Callable[[Tensor], Tensor]) -> Change:
    def change(run: Run) -> None:
        run.model.get_submodule(path).register_full_backward_hook(lambda m, given, got: (edit(given[0]), *given[1:]))

    return change


def zeroed(x: Tensor) -> Tensor:
    x = x.clone()
    x[1, 2, 3] = 0
    return x


def rows_swapped(x: Tensor) -> Tensor:
    return x[:, [1, 0, *range(2, x.shape[1])]]


def batch(name: str, edit: Callable[[Tensor], Tensor]) -> Change:
    def change(run: Run) -> None:
        run.batch[name] = edit(run.batch[name])

    return change


def field(**values: Any) -> Change:
    def change(run: Run) -> None:
        for name, value in values.items():
            setattr(run, name, value)

    return change


def no_bias(path: str) -> Change:
    def change(run: Run) -> None:
        run.model.get_submodule(path).bias = None

    return change


def optimizer(kind: Any, **settings: Any) -> Change:
    def change(run: Run) -> None:
        run.optimizer = kind
        run.settings = run.settings | settings

    return change


class NoCorrection(torch.optim.AdamW):
    """AdamW that starts at a late step: without bias correction to speak of."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    state = self.state[p]
                    state["step"] = torch.tensor(10000.0)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        return super().step(closure)


def same_state(run: Run) -> None:
    """The honest one starts likewise, at step 0."""

    class FromZero(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None and not self.state[p]:
                        state = self.state[p]
                        state["step"] = torch.tensor(0.0)
                        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            return super().step(closure)

    run.optimizer = FromZero


def llama_cases(program: str, layer: int) -> Iterator[Case]:
    at = f"layers.{layer}"
    attn, norm = rf"\|{at}.attn\|forward", rf"\|{at}.input_norm\|"
    for device in ("split", "torch") if program == "llama fp32" else ("split",):

        def case(name: str, change: Change, guilty: str, base: Change = _unchanged, device: str = device) -> Case:
            return Case(program, f"{name} ({device})", change, base, device, guilty=guilty)

        yield case("mask off by one", part(f"{at}.attn", diagonal=2), rf"Aten\.triu\..*{attn}")
        yield case("mask off by one, stricter", part(f"{at}.attn", diagonal=0), rf"Aten\.triu\..*{attn}")
        yield case("scale x1.02", part(f"{at}.attn", scale=times(1.02)), rf"Aten\.mul\..*{attn}")
        yield case("softmax over rows", part(f"{at}.attn", dim=-2), rf"Aten\._softmax\..*{attn}")
        yield case("eps 1e-2", part(f"{at}.input_norm", eps=1e-2), rf"Aten\.add_?\..*{norm}")
        yield case("weight x1.001", weight(f"{at}.mlp.up_proj.weight", 1.001), rf"\|{at}.mlp.up_proj\|forward")
        yield case("bias dropped", no_bias(f"{at}.attn.q_proj"), rf"Aten\.(mm|addmm)\..*\|{at}.attn.q_proj\|forward")
        yield case(
            "zeroed element",
            hook(f"{at}.mlp", zeroed),
            rf"Aten\.(fill_|index_put_?|clone|lift_fresh|copy_|add)\..*\|{at}(.mlp)?\|forward",
        )
        yield case("rows swapped", hook(f"{at}.mlp", rows_swapped), rf"Aten\.index\..*\|{at}(.mlp)?\|forward")
        yield case(
            "batch shuffled",
            batch("tokens", lambda t: t[[1, 0, *range(2, len(t))]]),
            r"Aten\.embedding\..*\|embed\|forward",
        )
        yield case(
            "labels shifted too far",
            batch("labels", lambda t: t.roll(-1, 1)),
            r"Aten\.(nll_loss_forward|view|_unsafe_view|reshape)\..*\|forward",
        )
        yield case("sum for mean", part("", reduction="sum"), r"Aten\.nll_loss_forward\..*\|forward")
        if program != "llama fp16":  # its gradients are shorter than the limit
            yield case(
                "clipping left out",
                field(clip=None),
                r"(linalg_vector_norm|_foreach_norm|_foreach_mul_|stack|clamp|_foreach_add_|_foreach_lerp_|_foreach_mul_|reciprocal|_foreach)",
            )
        yield case(
            "beta2 0.99",
            setting(betas=(0.9, 0.99)),
            r"Aten\._foreach_(addcmul_|mul_|pow|rsub|sub_|lerp_)\..*\|optimizer",
        )
        yield case(
            "weight decay left out",
            setting(weight_decay=0.0),
            r"Aten\._foreach_(mul_|addcdiv_|addcmul_|lerp_)\..*\|optimizer",
        )
        yield case(
            "lr x1.05", setting(lr=3e-3 * 1.05), r"Aten\._foreach_(mul_|addcdiv_|div_|reciprocal)\..*\|optimizer"
        )
        yield case(
            "Adam for AdamW", optimizer(torch.optim.Adam), r"Aten\._foreach_(mul_|add_?|addcdiv_)\..*\|optimizer"
        )
        if "fp16" not in program:
            for wrong in ("x1.05", "x1.01", "sign", "formula", "swapped"):
                yield case(
                    f"gate's backward {wrong}",
                    part(f"{at}.mlp", wrong=wrong),
                    rf"\\|{at}.mlp(\\.up_proj|\\.gate_proj)?\\|backward",
                )
            if program in ("llama bf16 functions", "llama fp32"):
                for wrong in ("missing sqrt", "broadcast"):
                    yield case(f"norm's backward {wrong}", part(f"{at}.input_norm", wrong=wrong), rf"{norm}backward")
        if device == "split":
            yield case(
                "scale x1.02 in decomposed attention",
                part(f"{at}.attn", scale=times(1.02)),
                rf"\|{at}.attn\|forward",
                form("math"),
            )
            yield case(
                "scale x1.02 in fused attention",
                part(f"{at}.attn", scale=times(1.02)),
                rf"flash_attention.*{attn}",
                form("flash"),
            )
            yield case(
                "scale x1.02, fused against eager",
                both(form("flash"), part(f"{at}.attn", scale=times(1.02))),
                rf"\|{at}.attn\|forward",
            )
            gradient = gradient_hook(f"{at}.mlp", lambda g: g * 1.02)
            yield case("gradient of one layer x1.02", gradient, rf"\|({at}.*)?\|backward")


def bert_cases(program: str) -> Iterator[Case]:
    layer = "bert.encoder.layer.1"

    def case(name: str, change: Change, guilty: str, program: str = program) -> Case:
        return Case(program, name, change, device="split", guilty=guilty)

    yield case(
        "eps 1e-2",
        part(f"{layer}.output.LayerNorm", eps=1e-2),
        rf"native_layer_norm\..*\|{layer}.output.LayerNorm\|forward",
    )
    yield case(
        "gelu tanh for erf",
        part(f"{layer}.intermediate", intermediate_act_fn=lambda f: nn.GELU("tanh")),
        rf"gelu\..*\|{layer}.intermediate.*\|forward",
    )
    yield case(
        "weight x1.001",
        weight(f"{layer}.attention.self.query.weight", 1.001),
        rf"\|{layer}.attention.self.query\|forward",
    )
    yield case(
        "scale x1.02",
        part(f"{layer}.attention.self", scaling=times(1.02)),
        rf"Aten\.mul\..*\|{layer}.attention.self\|forward",
    )
    yield case("zeroed element", hook(f"{layer}.attention", zeroed), rf"\|{layer}(.attention)?\|forward")
    yield case(
        "rows swapped",
        hook(f"{layer}.output.dense", rows_swapped),
        rf"Aten\.index\..*\|{layer}.output(.dense)?\|forward",
    )
    yield case("mask ignored", batch("attention_mask", torch.ones_like), r"\|forward")
    yield case("labels shifted", batch("labels", lambda t: t.roll(1, 1)), r"Aten\.(nll_loss_forward|view)\..*\|forward")
    yield case("beta1 0.95", setting(betas=(0.95, 0.999)), r"Aten\._foreach_(lerp_|pow|rsub|sub_|div_)\..*\|optimizer")
    if program == "bert fp32":
        yield case(
            "dropout 0.15",
            part(f"{layer}.output.dropout", p=0.15),
            rf"Aten\.(native_dropout|bernoulli_|empty_like)\..*\|{layer}.output.dropout\|forward",
        )


def image_cases() -> Iterator[Case]:
    for program in ("vit fp16", "vit bf16"):

        def case(name: str, change: Change, guilty: str, program: str = program) -> Case:
            return Case(program, name, change, device="split", guilty=guilty)

        yield case(
            "pixels normalised twice", batch("pixel_values", lambda x: x * 0.5), r"Aten\.convolution\..*\|forward"
        )
        if program == "vit fp16":
            yield case("gradients not unscaled", field(unscale=False), r"(Aten\._foreach_mul_|\|optimizer)")
    for program in ("resnet fp32", "resnet autocast", "resnet bf16"):

        def case(name: str, change: Change, guilty: str, program: str = program) -> Case:
            return Case(program, name, change, device="split", guilty=guilty)

        yield case("stale statistics", part("blocks.1.bn2", momentum=0.0), r"batch_norm\..*\|blocks.1.bn2\|forward")
        yield case(
            "BatchNorm in eval",
            lambda run: run.model.get_submodule("blocks.1.bn2").eval(),
            r"(batch_norm|add_)\..*\|blocks.1.bn2\|forward",
        )
        yield case("BatchNorm eps 1e-2", part("blocks.1.bn2", eps=1e-2), r"batch_norm\..*\|blocks.1.bn2\|forward")
        yield case("no smoothing", part("", smoothing=0.0), r"\|forward")
        yield case("weight x1.001", weight("blocks.2.conv2.weight", 1.001), r"\|blocks.2.conv2\|forward")
        yield case("momentum left out", setting(momentum=0.0, nesterov=False), r"\|optimizer")
        yield case("not nesterov", setting(nesterov=False), r"\|optimizer")
        yield case("weight decay left out", setting(weight_decay=0.0), r"\|optimizer")
        yield case(
            "padding in the wrong place",
            hook("blocks.0.conv2", lambda x: x.roll(1, -1)),
            r"Aten\.roll\..*\|blocks.0(.conv2)?\|forward",
        )
        yield case("gradient sign", gradient_hook("blocks.1", lambda g: -g), r"\|(blocks.*)?\|backward")
        yield Case(
            program,
            "stale statistics of a kernel",
            device="split",
            guilty=r"native_batch_norm\.4\.",
            spoil=Spoil("native_batch_norm", 4, unwritten(3)),
        )


def language_cases() -> Iterator[Case]:
    for program in ("t5 fp32", "t5 bf16"):
        block = "decoder.block.1"

        def case(name: str, change: Change, guilty: str, program: str = program) -> Case:
            return Case(program, name, change, device="split", guilty=guilty)

        yield case(
            "eps 1e-2",
            part(f"{block}.layer.1.layer_norm", variance_epsilon=1e-2),
            rf"Aten\.add\..*\|{block}.layer.1.layer_norm\|forward",
        )
        yield case(
            "weight x1.001",
            weight(f"{block}.layer.2.DenseReluDense.wi_0.weight", 1.001),
            rf"\|{block}.layer.2.DenseReluDense.wi_0\|forward",
        )
        yield case("labels shifted", batch("labels", lambda t: t.roll(1, 1)), r"\|forward")
        yield case(
            "zeroed element",
            hook("encoder.block.2.layer.0.SelfAttention", zeroed),
            r"\|encoder.block.2.layer.0(.SelfAttention)?\|forward",
        )
        yield case(
            "gelu erf for tanh",
            part(f"{block}.layer.2.DenseReluDense", act=lambda f: nn.GELU()),
            rf"\|{block}.layer.2.DenseReluDense.*\|forward",
        )
    for program in ("mixtral fp32", "mixtral bf16"):

        def case(name: str, change: Change, guilty: str, program: str = program) -> Case:
            return Case(program, name, change, device="split", guilty=guilty)

        yield case(
            "eps 1e-2",
            part("model.layers.1.post_attention_layernorm", variance_epsilon=1e-2),
            r"Aten\.add\..*\|model.layers.1.post_attention_layernorm\|forward",
        )
        yield case(
            "scale x1.02", part("model.layers.2.self_attn", scaling=times(1.02)), r"\|model.layers.2.self_attn\|forward"
        )
        yield case(
            "weight x1.001",
            weight("model.layers.1.mlp.experts.down_proj", 1.001),
            r"\|model.layers.1.mlp.experts\|forward",
        )
        yield case(
            "rows swapped", hook("model.layers.0.mlp", rows_swapped), r"Aten\.index\..*\|model.layers.0(.mlp)?\|forward"
        )
        yield case(
            "router weight x1.001",
            weight("model.layers.1.mlp.gate.weight", 1.001),
            r"\|model.layers.1.mlp.gate\|forward",
        )
    for program in ("gpt2 fp32", "gpt2 bf16"):

        def case(name: str, change: Change, guilty: str, program: str = program) -> Case:
            return Case(program, name, change, device="split", guilty=guilty)

        yield case(
            "gelu erf for tanh",
            part("transformer.h.2.mlp", act=lambda f: nn.GELU()),
            r"\|transformer.h.2.mlp.*\|forward",
        )
        yield case(
            "dropout 0.15", part("transformer.h.1.mlp.dropout", p=0.15), r"\|transformer.h.1.mlp.dropout\|forward"
        )
        yield case(
            "eps 1e-2", part("transformer.h.3.ln_2", eps=1e-2), r"native_layer_norm\..*\|transformer.h.3.ln_2\|forward"
        )
        yield case("bias of zeros", weight("transformer.h.1.ln_1.weight", 0.0), r"\|transformer.h.1.ln_1\|forward")
        yield Case(
            program,
            "no bias correction",
            optimizer(NoCorrection),
            same_state,
            "split",
            guilty=r"(lift_fresh|\|optimizer)",
        )
        yield case(
            "weight decay 0 for 0.01", setting(weight_decay=0.0), r"Aten\._foreach_(mul_|addcdiv_|lerp_)\..*\|optimizer"
        )


KERNELS: dict[str, list[Spoil]] = {
    "llama bf16": [
        Spoil("mm", 21, scaled(1.02)), Spoil("mm", 40, element(0.0)), Spoil("mm", 90, scaled(1.02)), Spoil("mm", 61, tail), Spoil("bmm", 9, scaled(1.02)),
        Spoil("bmm", 6, element(0.0)), Spoil("addmm", 13, swapped), Spoil("_softmax", 4, scaled(1.01)), Spoil("_softmax_backward_data", 3, scaled(1.05)),
        Spoil("mul", 60, scaled(1.02)), Spoil("rsqrt", 5, scaled(1.001)), Spoil("embedding_dense_backward", 0, scaled(1.05)), Spoil("sum", 20, scaled(1.02)),
        Spoil("silu", 3, scaled(1.02)), Spoil("_foreach_addcdiv_", 0, scaled(1.02)), Spoil("_foreach_lerp_", 0, scaled(1.05)), Spoil("_foreach_sqrt", 0, element(0.0)),
        Spoil("add", 30, element(0.0)), Spoil("nll_loss_backward", 0, scaled(1.05)), Spoil("cat", 7, swapped), Spoil("mm", 50, scaled(1.01)),
    ],
    "llama fp32": [
        Spoil("mm", 21, scaled(1.001)), Spoil("mm", 30, coarse), Spoil("bmm", 5, element(0.0)), Spoil("_softmax", 2, coarse), Spoil("sum", 9, scaled(1.0001)),
        Spoil("_foreach_sqrt", 0, scaled(1.001)), Spoil("mul", 33, element(0.0)), Spoil("cos", 1, scaled(1.001)), Spoil("mean", 3, scaled(1.00005)),
        Spoil("_foreach_addcmul_", 0, scaled(1.001)), Spoil("rsqrt", 3, coarse),
    ],
    "llama fp16": [Spoil("mm", 21, scaled(1.01)), Spoil("bmm", 11, element(0.0)), Spoil("rsqrt", 3, scaled(1.005)), Spoil("mul", 70, scaled(1.01))],
    "bert fp32": [
        Spoil("native_layer_norm_backward", 3, scaled(1.001)), Spoil("native_layer_norm_backward", 3, scaled(1.001, 1)), Spoil("gelu_backward", 1, scaled(1.0005)),
        Spoil("native_layer_norm", 2, element(0.0)), Spoil("addmm", 8, swapped), Spoil("embedding", 0, swapped),
        Spoil("bmm", 3, tail), Spoil("_log_softmax", 0, scaled(1.001)), Spoil("embedding_dense_backward", 1, element(0.0)),
    ],
    "bert bf16": [
        Spoil("native_layer_norm_backward", 3, scaled(1.02)), Spoil("native_layer_norm_backward", 3, scaled(1.02, 2)), Spoil("gelu_backward", 1, scaled(1.02)),
        Spoil("native_layer_norm", 2, scaled(1.02)), Spoil("gelu", 2, element(0.0)), Spoil("addmm", 9, scaled(1.02)), Spoil("mm", 11, tail),
    ],
    "vit fp16": [
        Spoil("convolution", 0, scaled(1.005)), Spoil("convolution_backward", 0, scaled(1.02)), Spoil("addmm", 7, scaled(1.01)), Spoil("mm", 9, element(0.0)),
        Spoil("gelu_backward", 1, scaled(1.01)),
    ],
    "vit bf16": [Spoil("convolution", 0, element(0.0)), Spoil("bmm", 2, scaled(1.02)), Spoil("native_layer_norm", 4, scaled(1.02, 1))],
    "resnet fp32": [
        Spoil("convolution", 4, scaled(1.001)), Spoil("convolution_backward", 3, scaled(1.001)), Spoil("convolution_backward", 3, scaled(1.001, 1)),
        Spoil("native_batch_norm", 5, scaled(1.001)), Spoil("native_batch_norm_backward", 2, element(0.0)), Spoil("relu_", 3, element(1.0)), Spoil("avg_pool2d", 0, scaled(1.001)),
        Spoil("avg_pool2d_backward", 0, element(0.0)), Spoil("threshold_backward", 3, element(1.0)), Spoil("convolution", 2, coarse),
    ],
    "resnet bf16": [Spoil("convolution", 5, scaled(1.02)), Spoil("native_batch_norm_backward", 4, scaled(1.02)), Spoil("native_batch_norm", 6, element(0.0)), Spoil("convolution_backward", 5, scaled(1.05, 1))],
    "t5 bf16": [Spoil("mm", 17, scaled(1.02)), Spoil("bmm", 14, element(0.0)), Spoil("mm", 80, swapped), Spoil("embedding_dense_backward", 0, scaled(1.02))],
    "mixtral fp32": [Spoil("topk", 1, swapped), Spoil("mm", 8, scaled(1.001))],
    "gpt2 fp32": [
        Spoil("_scaled_dot_product_flash_attention_for_cpu", 2, scaled(1.001)), Spoil("_scaled_dot_product_flash_attention_for_cpu_backward", 1, scaled(1.001)), Spoil("tanh_backward", 2, scaled(1.001)), Spoil("pow", 2, scaled(1.0005)), Spoil("_foreach_addcdiv_", 0, scaled(1.001)),
        Spoil("_foreach_mul_", 0, scaled(1.0001)),
    ],
    "gpt2 bf16": [
        Spoil("_scaled_dot_product_flash_attention_for_cpu", 2, scaled(1.02)), Spoil("_scaled_dot_product_flash_attention_for_cpu_backward", 1, scaled(1.05)),
        Spoil("_scaled_dot_product_flash_attention_for_cpu_backward", 1, element(0.0, 1)), Spoil("tanh", 2, scaled(1.02)), Spoil("addmm", 9, scaled(1.01)),
        Spoil("_foreach_addcdiv_", 0, scaled(1.05)), Spoil("mm", 13, tail),
    ],
}  # fmt: skip

NAMES = {"coarse": "in bfloat16", "tail": "without its last term", "swapped": "rows swapped"}


def kernel_cases() -> Iterator[Case]:
    for program, spoils in KERNELS.items():
        for spoil in spoils:
            what = getattr(spoil.change, "__name__", "")
            inner = [cell.cell_contents for cell in spoil.change.__closure__ or ()]
            name = f"kernel {spoil.op} {spoil.number} {NAMES.get(what, what)} {inner or ''}"
            yield Case(
                program,
                name,
                device="split",
                guilty=rf"^{spoil.call.replace('.', chr(92) + '.')}",
                spoil=spoil,
                by_replay=True,
            )


def cases() -> Iterator[Case]:
    yield from llama_cases("llama bf16", 4)
    yield from llama_cases("llama bf16 functions", 2)
    yield from llama_cases("llama fp32", 1)
    yield from llama_cases("llama fp16", 2)
    yield from bert_cases("bert fp32")
    yield from bert_cases("bert bf16")
    yield from image_cases()
    yield from language_cases()
    yield from kernel_cases()
