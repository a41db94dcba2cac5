"""Honest variants: other kernels, other forms of the same mathematics. None may raise an alarm."""

from __future__ import annotations

from collections.abc import Iterator

from .examine import Case, Change
from .programs import PROGRAMS, Run


def setting(**settings: object) -> Change:
    def change(run: Run) -> None:
        run.settings = run.settings | settings

    return change


def form(attention: str = "eager", norm: str = "", mlp: str = "") -> Change:
    def change(run: Run) -> None:
        for module in run.model.modules():
            kind = type(module).__name__
            if kind == "Attention":
                module.form = attention  # type: ignore[assignment]
            elif kind == "RmsNorm" and norm:
                module.form = norm  # type: ignore[assignment]
            elif kind == "Mlp" and mlp:
                module.form = mlp  # type: ignore[assignment]

    return change


def attention(name: str) -> Change:
    def change(run: Run) -> None:
        run.model.set_attn_implementation(name)  # type: ignore[operator]

    return change


def threads(run: Run) -> None:
    run.threads = 2


def cases() -> Iterator[Case]:
    for program in PROGRAMS:
        half = "fp32" not in program
        for device in ("split", "precise", *(("halves",) if half and "autocast" not in program else ())):
            yield Case(program, f"{device} kernels", device=device)
        yield Case(program, "for loop over parameters", setting(foreach=False), device="split")
        yield Case(program, "two threads", threads)
        if program.startswith("llama"):
            yield Case(program, "flash attention", form("flash"), device="split")
            yield Case(program, "decomposed attention", form("math"), device="split")
            yield Case(program, "flash against decomposed", form("math"), form("flash"), device="split")
            yield Case(program, "fused norm", form(norm="fused"), device="split")
            yield Case(program, "composite norm", form(norm="composite"), device="precise")
            yield Case(program, "gate without a function", form(mlp="plain"), device="split")
        elif program.split()[0] in ("bert", "vit", "gpt2", "mixtral"):
            other = "sdpa" if program.split()[0] in ("bert", "vit") else "eager"
            if program != "bert fp32":  # dropout in attention draws otherwise
                yield Case(program, f"{other} attention", attention(other), device="split")
        if "AdamW" in str(PROGRAMS[program]().optimizer):
            yield Case(program, "fused optimizer", setting(foreach=None, fused=True), device="split")
    for program in ("gpt2 fp32", "gpt2 bf16", "llama bf16", "resnet fp32", "mixtral fp32", "bert bf16"):
        yield Case(program, "two steps", device="split", steps=2)
