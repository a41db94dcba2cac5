"""What a command found, as text or as JSON: the option --format, and the one place where JSON is made.

Theory of operation
    With ``--format json`` stdout has one object, and whatever else a command says goes to stderr: `console.echo` asks
    `is_for_records`. So a command prints as ever, and beside that gives what it found to `print_record`.

In: nothing from this package. Out: objects with the version of their schema, which is in docs/json.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

SCHEMA: Final = 1  # a later one only adds members
before_output: Final[list[Callable[[], None]]] = []  # what makes way for output: bars
_is_for_records = False


def is_for_records() -> bool:
    """Return True if stdout is to have nothing but what `print_record` prints."""
    return _is_for_records


def keep_stdout_for_records(is_so: bool) -> None:
    """Set if stdout may have nothing but what `print_record` prints."""
    global _is_for_records
    _is_for_records = is_so


def format_option(*schemas: str, more: str = "") -> Callable[[Function], Function]:
    """Add --format, text or json.

    Args:
        schemas: the files in docs/json that describe the object, without ``.schema.json``.
        more: what else the help says.
    """
    files = " or ".join(f"docs/json/{name}.schema.json" for name in schemas)
    what = f"Text, or one JSON object with the schema {files}{more}."

    def chosen(context: click.Context, parameter: click.Parameter, form: str) -> str:
        keep_stdout_for_records(form == "json")
        return form

    choice = click.Choice(["text", "json"])
    return click.option("--format", "form", type=choice, default="text", show_default=True, help=what, callback=chosen)


def print_record(record: Mapping[str, Any]) -> None:
    """Print what a command found as one JSON object, with the version of its schema.

    Dataclasses become objects, paths text; NaN and infinities are texts, as JSON has none.
    """
    for make_way in before_output:
        make_way()
    click.echo(json.dumps({"schema": SCHEMA, **as_json(record)}, indent=1, allow_nan=False))


def as_json(item: Any) -> Any:
    """Return plain values for JSON."""
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: as_json(getattr(item, field.name)) for field in dataclasses.fields(item)}
    if isinstance(item, Mapping):
        return {str(key): as_json(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return list(map(as_json, item))
    if isinstance(item, complex):
        return [as_json(item.real), as_json(item.imag)]
    if isinstance(item, float) and not math.isfinite(item):
        return "NaN" if math.isnan(item) else "Infinity" if item > 0 else "-Infinity"
    return str(item) if isinstance(item, os.PathLike) else item
