"""What other tools and other packages add: readers of their dumps and configs, export targets, references of fused ops.

Theory of operation
    Each kind is a group of entry points, and whoever asks for one knows neither who adds to it nor how many there are.
    What comes with aten_dump is in a table here, so that a checkout that is not installed has it too; a test holds
    pyproject.toml to it. What other packages add is found by ``importlib.metadata``, behind ours and under other names.
    An object is imported when it is reached, so that no config and no list of targets costs an import of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from .errors import ConfigError

READERS: Final = "aten_dump.readers"  # a `dump.foreign.formats.Reader`
CONFIGS: Final = "aten_dump.configs"  # a `config_files.translation.OtherConfig`
EXPORTS: Final = "aten_dump.exports"  # an `export.targets.Target`
REFERENCES: Final = "aten_dump.references"  # a `references.fused_op.References`

BUILT_IN: Final[dict[str, dict[str, str]]] = {
    READERS: {
        "msprobe": "aten_dump.other_tools.msprobe.msprobe_dump:READER",
        "MindSpore": "aten_dump.other_tools.mindspore.mindspore_dump:READER",
    },
    CONFIGS: {
        "MindSpore": "aten_dump.other_tools.mindspore.mindspore_keys:CONFIG",
        "msprobe": "aten_dump.other_tools.msprobe.msprobe_keys:CONFIG",
    },
    EXPORTS: {
        "msprobe": "aten_dump.other_tools.msprobe:TARGET",
        "apex": "aten_dump.other_tools.apex:TARGET",
        "npy": "aten_dump.other_tools.mindspore:TARGET",
    },
    REFERENCES: {
        "npu": "aten_dump.references.npu:REFERENCES",
        "fsdp": "aten_dump.references.fsdp:REFERENCES",
        "torch": "aten_dump.references.torch_ops:REFERENCES",
    },
}


def extensions(group: str) -> Iterator[tuple[str, Any]]:
    """Yield name and object of each extension of a group, ours first; an object is imported as it is reached.

    Raises:
        ConfigError: what another package adds cannot be imported.
    """
    for name, place in BUILT_IN[group].items():
        yield name, object_at(place)
    for found in _of_others(group):
        try:
            yield found.name, found.load()
        except (AttributeError, ImportError) as error:
            package = found.dist.name if found.dist is not None else "a package"
            raise ConfigError(
                f"{found.value}, which {package} adds to {found.group}, cannot be imported: {error}; repair or "
                "uninstall that package"
            ) from error


def object_at(place: str) -> Any:
    """Import what an entry point's text names, ``module:object``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _of_others(group: str) -> list[EntryPoint]:
    """Return what other packages add, each name once; names of built-in ones are taken."""
    found: dict[str, EntryPoint] = {}
    for one in entry_points(group=group):
        if one.name not in BUILT_IN[group]:
            found.setdefault(one.name, one)
    return [found[name] for name in sorted(found)]
