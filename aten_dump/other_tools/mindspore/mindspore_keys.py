"""MindSpore's data_dump.json: each key becomes fields of DumpConfig, or is named as one without meaning here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...config_files.translation import OtherConfig, Translation, no_meaning, numbers, path_field, pattern
from ...errors import ConfigError
from .table_names import COLUMNS

_AROUND: Final = "MS_DIAGNOSTIC_DATA_PATH"  # where MindSpore makes the directory of a dump without a path
_DATA: Final = {"tensor": "tensor", "statistic": "statistic", "full": "full"}
_IO: Final = {0: "all", 1: "input", 2: "output"}
_STATISTICS: Final = {theirs.lower().removesuffix(" value"): ours for theirs, ours in COLUMNS.items()} | {"md5": ""}


def _dump_mode(translation: Translation, key: str, found: Any) -> None:
    translation.choose(key, found, {0: "all", 1: "kernels", 2: "set_dump"})
    if found == 0:
        translation.mapped[key] = "all ops: the default"
    elif found == 1:
        translation.mapped[key] = "ops of `kernels`"
    else:
        translation.drop(key, "set_dump marks cells in the script; name them in DumpConfig.modules")


def _iteration(translation: Translation, key: str, found: Any) -> None:
    translation.put(key, steps=str(found))


def _saved_data(translation: Translation, key: str, found: Any) -> None:
    translation.put(key, data=translation.choose(key, found, _DATA))


def _input_output(translation: Translation, key: str, found: Any) -> None:
    translation.put(key, io=translation.choose(key, found, _IO))


def _kernels(translation: Translation, key: str, found: Any) -> None:
    names = [pattern(name) for name in translation.strings(key, found)]
    # "Default/network/conv1-Conv2d/Conv2D-op12": a node of their graph, of which the op's type has a meaning here.
    ops = [name if name.startswith("regex:") else name.rpartition("/")[2].partition("-op")[0] for name in names]
    if ops:
        translation.put(key, ops=ops)


def _support_device(translation: Translation, key: str, found: Any) -> None:
    if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
        raise translation.wrong(key, found, "a list of ints")
    translation.put(key, ranks=numbers(found))


def _op_debug_mode(translation: Translation, key: str, found: Any) -> None:
    translation.choose(key, found, dict.fromkeys(range(5)))
    if found == 0:
        translation.mapped[key] = "no trigger: the default"
    elif found == 4:
        translation.drop(key, "a call that raises is recorded with its inputs and its error, whatever else is")
    else:
        translation.put(key, trigger="nonfinite")
        if found != 3:
            translation.mapped[key] += (
                "; overflows of AiCore (1) and of atomic adds (2) are not distinguished: both count"
            )


def _path(translation: Translation, key: str, found: Any) -> None:
    """Take the directory of the dump; where it is empty that of the environment, as MindSpore does."""
    if found != "":
        path_field(translation, key, found)
        return
    around = os.environ.get(_AROUND)
    if not around:
        raise ConfigError(f"{translation.source}: path is empty, and {_AROUND} is not set; set one to a directory")
    translation.put(key, path=os.path.join(around, "debug_dump"))


def _net_name(translation: Translation, key: str, found: Any) -> None:
    translation.put(key, net_name=found or None)


def _statistic_category(translation: Translation, key: str, found: Any) -> None:
    names = [translation.choose(key, name, _STATISTICS) for name in translation.strings(key, found)]
    statistics = [name for name in names if name]
    fields: dict[str, Any] = {"statistics": statistics} if statistics else {}
    if "" in names:
        fields["hash"] = "md5"
        if not statistics:
            fields["data"] = "hash"
    translation.put(key, **fields)


def _sample_num(translation: Translation, key: str, found: Any) -> None:
    translation.put(key, sample=found)


def _enable(translation: Translation, key: str, found: Any) -> None:
    translation.drop(key, "a dump is made where the script enters DumpMode, or under `aten-dump run`")


_COMMON: Final[dict[str, Callable[[Translation, str, Any], None]]] = {
    "op_debug_mode": _op_debug_mode,
    "dump_mode": _dump_mode,
    "path": _path,
    "net_name": _net_name,
    "iteration": _iteration,
    "saved_data": _saved_data,
    "input_output": _input_output,
    "kernels": _kernels,
    "support_device": _support_device,
    "statistic_category": _statistic_category,
    "file_format": no_meaning("the format is ours; `aten-dump export --to npy` writes theirs"),
    "overflow_number": no_meaning("`trigger_times` bounds the steps in which one cause writes"),
    "initial_iteration": no_meaning("steps count from 0"),
}
_END_TO_END: Final[dict[str, Callable[[Translation, str, Any], None]]] = {
    "enable": _enable,
    "trans_flag": no_meaning("tensors are recorded in PyTorch's own layouts"),
    "stat_calc_mode": no_meaning("statistics are computed where the tensor is"),
    "device_stat_precision_mode": no_meaning("statistics are accumulated in float32 or wider"),
    "sample_mode": no_meaning("`sample_num` alone says it: DumpConfig.sample"),
    "sample_num": _sample_num,
    "save_kernel_args": no_meaning("arguments of calls are always recorded"),
}
_SECTIONS: Final = {
    "common_dump_settings": _COMMON,
    "e2e_dump_settings": _END_TO_END,
    "async_dump_settings": _END_TO_END,
}
KEYS: Final = {**_COMMON, **_END_TO_END}


def is_mindspore(content: Mapping[str, Any]) -> bool:
    """Return True if a config is MindSpore's."""
    return "common_dump_settings" in content


def translate(content: Mapping[str, Any], source: str) -> Translation:
    """Translate a config."""
    translation = Translation("MindSpore", source)
    for section, keys in content.items():
        if section not in _SECTIONS:
            raise ConfigError(f"{source} has unknown section {section}; MindSpore has: {', '.join(_SECTIONS)}")
        if not isinstance(keys, Mapping):
            raise ConfigError(f"{source}: {section} is {keys!r}; an object is expected")
        chosen = dict(keys)
        if chosen.get("sample_mode") == 0:  # samples are off, whatever their number
            chosen.pop("sample_num", None)
        if chosen.get("dump_mode", 1) != 1:
            chosen.pop("kernels", None)  # counts in dump_mode 1 only
        translation.each(chosen, _SECTIONS[section])
        for key in set(keys) - set(chosen):
            translation.drop(key, "it is off in this file")
    if "path" not in translation.fields:
        _path(translation, "path", "")
    return translation


CONFIG: Final = OtherConfig(is_mindspore, translate)
