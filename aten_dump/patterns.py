"""Texts that select ops, calls and modules: one language for `DumpConfig`, filters, the command line and the page.

- ``regex:...`` is a regular expression, looked for anywhere in a name.
- The full name of an op or api stands for itself: it has ``::`` in it or begins with a prefix of call names
  (``aten::add.Tensor``, ``Functional.linear``). Without its overload, ``aten::add``, it stands for all of them.
- Anything else is a part of a name, in any case: ``norm``.
- Modules are selected by globs on their paths, which take in all that is inside.

What a text means depends on the text alone, so that it records what it later finds. `page/data/search.js` has the same
rules; `tests/test_patterns.py` holds them together.

In: from this package only errors.
Out: tests of names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import translate
from typing import Final

from .errors import ConfigError

REGEX: Final = "regex:"
# With which names of calls begin, those of other tools included.
PREFIXES: Final = frozenset(
    (
        *("Aten", "Custom", "Distributed", "Functional", "Mark", "Module", "NPU", "Node", "Saved", "Scope", "Tensor"),
        *("Torch", "VF", "Cell", "MindSpore", "Parameters"),
    )
)

NameTest = Callable[[str], bool]
_PACKAGES: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_TORCH: Final = frozenset(("torch", "torch_npu", "functorch"))


def regular_expression(text: str, what: str) -> NameTest:
    """Return the test for a regular expression, found anywhere in a name; `what` it is stands in errors.

    Raises:
        ConfigError: it does not compile.
    """
    try:
        search = re.compile(text).search
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply for a regular expression; make it simpler") from None
    except (re.error, OverflowError) as error:
        raise ConfigError(f"{what} is not a regular expression: {error}; fix it or leave out '{REGEX}'") from None
    return lambda name: search(name) is not None


def text_test(text: str, what: str) -> NameTest:
    """Return the test for a part of a name in any case, or for ``regex:...``.

    Raises:
        ConfigError: the regular expression does not compile.
    """
    if text.startswith(REGEX):
        return regular_expression(text.removeprefix(REGEX), what)
    part = text.lower()
    return lambda name: part in name.lower()


def op_test(text: str, what: str) -> Callable[[str, str], bool]:
    """Return the test of an op, by its full name and the head of its calls' names (``Functional.linear``).

    Raises:
        ConfigError: the regular expression does not compile.
    """
    is_full = not text.startswith(REGEX) and ("::" in text or (text.partition(".")[0] in PREFIXES and "." in text))
    matches = text.__eq__ if is_full else text_test(text, what)
    return lambda op, head: any(matches(name) for name in op_names(op, head))


def op_names(op: str, head: str) -> tuple[str, str, str]:
    """Return the names that a user may know an op by: in full, without its overload, and as in call names."""
    namespace, colons, rest = op.rpartition("::")
    return op, f"{namespace}{colons}{rest.partition('.')[0]}" if colons else op, head


def module_test(glob: str, what: str) -> NameTest:
    """Return the test for modules that match a glob, or are inside one that does; the model itself is ``""``.

    Raises:
        ConfigError: the glob is empty.
    """
    if not glob:
        raise ConfigError(f"{what} is empty; give a glob on the module path such as 'transformer.h.*.attn'")
    match = re.compile(translate(glob)).match
    return lambda path: any(match(outer) for outer in (outer_modules(path) if path else ("",)))


def outer_modules(path: str) -> Iterator[str]:
    """Yield a module path and the paths of the modules around it: ``a.b``, ``a``."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def is_of_library(file: str) -> bool:
    """Return True if a source file belongs to an installed package other than torch."""
    found = _PACKAGES.search(file)
    return found is not None and found[1] not in _TORCH
