"""msprobe's config.json: each key becomes fields of DumpConfig, or is named as one without meaning here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...config_files.translation import OtherConfig, Translation, no_meaning, numbers, path_field, pattern
from ...errors import ConfigError

_TASKS: Final[dict[str, dict[str, str]]] = {
    "statistics": {"data": "statistic"},
    "tensor": {"data": "full"},  # msprobe keeps statistics beside the tensors
    "structure": {"data": "structure"},
    "overflow_check": {"trigger": "nonfinite"},
    "nan_check": {"trigger": "nonfinite"},
}
_ELSEWHERE: Final = {
    "acc_check": "`aten-dump replay` runs recorded ops again in float64",
    "run_ut": "`aten-dump replay` runs recorded ops again in float64",
    "free_benchmark": "`aten-dump replay` runs recorded ops again in float64",
    "diff_check": "`aten-dump compare` compares two dumps",
    "grad_probe": 'DumpConfig(data="statistic") has the gradients of all parameters',
}
_LEVELS: Final = {"L0": "module", "L1": "api", "L2": "aten", "mix": "mix", "debug": "api"}
_SUMMARIES: Final = {"statistics": {}, "md5": {"data": "hash", "hash": "crc32"}, "xor": {"data": "hash"}}
_CALL: Final = re.compile(r"(.+?)\.(?:\d+\.(?:forward|backward)|(?:forward|backward)\.\d+)")


def _task(translation: Translation, key: str, found: Any) -> None:
    if isinstance(found, str) and found in _ELSEWHERE:
        translation.drop(key, f"task {found!r} is no recording: {_ELSEWHERE[found]}")
        return
    translation.put(key, **translation.choose(key, found, _TASKS))


def _numbers_field(name: str) -> Callable[[Translation, str, Any], None]:
    def put(translation: Translation, key: str, found: Any) -> None:
        items = [] if found is None else found
        if not isinstance(items, list) or not all(isinstance(one, int | str) for one in items):
            raise translation.wrong(key, found, 'a list of ints and ranges such as "2-4"')
        translation.put(key, **{name: numbers(items)})

    return put


def _level(translation: Translation, key: str, found: Any) -> None:
    translation.put(key, level=translation.choose(key, found, _LEVELS))


def _dump_enable(translation: Translation, key: str, found: Any) -> None:
    translation.drop(key, "a live run is switched with `aten-dump ctl DIR on|off`")


def _extra_info(translation: Translation, key: str, found: Any) -> None:
    translation.put(key, stacks=bool(found))


def _list(translation: Translation, key: str, found: Any) -> None:
    names = translation.strings(key, found)
    ops = [pattern(_CALL.sub(r"\1", name)) for name in names if not name.startswith(("Module.", "Cell."))]
    modules = [_module(name) for name in names if name.startswith(("Module.", "Cell."))]
    fields: dict[str, Any] = ({"ops": ops} if ops else {}) | ({"modules": modules} if modules else {})
    if fields:
        translation.put(key, **fields)


def _module(name: str) -> str:
    """Return the path of the module in ``Module.fc1.Linear.forward.0`` or a part of it."""
    match = _CALL.fullmatch(name)
    path = (match[1] if match else name).split(".")[1:]
    return ".".join(path[:-1] if match and len(path) > 1 else path).strip(".") or "*"


def _scope(translation: Translation, key: str, found: Any) -> None:
    if found:
        why = "calls between two others cannot be selected; select by `modules`, or filter when reading"
        translation.drop(key, why)


def _tensor_list(translation: Translation, key: str, found: Any) -> None:
    if found:
        translation.drop(key, 'data is chosen for all calls; take data="full" with `ops` for these names')


def _data_mode(translation: Translation, key: str, found: Any) -> None:
    modes = translation.strings(key, found)
    for mode in modes:
        translation.choose(key, mode, dict.fromkeys(("all", "input", "output", "forward", "backward")))
    sides = [mode for mode in modes if mode in ("input", "output")]
    translation.put(key, io=sides[0] if len(sides) == 1 else "all")
    if any(mode in ("forward", "backward") for mode in modes):
        translation.drop(f"{key}: forward, backward", "phases are recorded together; filter by `phase` when reading")


def _summary_mode(translation: Translation, key: str, found: Any) -> None:
    translation.put(key, **translation.choose(key, found, _SUMMARIES))


def _filter_list(name: str) -> Callable[[Translation, str, Any], None]:
    def put(translation: Translation, key: str, found: Any) -> None:
        if names := translation.strings(key, found):
            translation.put(key, **{name: names})

    return put


_ALWAYS: Final = "the recorder always"
_OF_TASK: Final[dict[str, Callable[[Translation, str, Any], None]]] = {
    "scope": _scope,
    "list": _list,
    "tensor_list": _tensor_list,
    "data_mode": _data_mode,
    "summary_mode": _summary_mode,
    "slice": no_meaning("a part of a tensor is chosen by `sample`: its first elements"),
    "request_id": no_meaning("requests of a server are not distinguished"),
    "bench_path": no_meaning("two dumps are compared with `aten-dump compare`"),
    "diff_nums": no_meaning("two dumps are compared with `aten-dump compare`"),
    "overflow_nums": no_meaning("`trigger_times` bounds the steps in which one cause writes"),
    "check_mode": no_meaning("`trigger` says when to write"),
    "white_list": _filter_list("ops"),
    "black_list": _filter_list("exclude_ops"),
    "error_data_path": no_meaning("there is one directory, `path`"),
    "file_format": no_meaning("the format is ours; `aten-dump export --to msprobe` writes theirs"),
}
KEYS: Final[dict[str, Callable[[Translation, str, Any], None]]] = {
    "task": _task,
    "dump_path": path_field,
    "rank": _numbers_field("ranks"),
    "step": _numbers_field("steps"),
    "level": _level,
    "async_dump": no_meaning(f"{_ALWAYS} writes in the background"),
    "precision": no_meaning(f"{_ALWAYS} accumulates statistics in float32 or wider"),
    "dump_enable": _dump_enable,
    "extra_info": _extra_info,
    "risk_level": no_meaning(f"{_ALWAYS} records all APIs; select with `ops`"),
    "custom_op_namespaces": no_meaning(f"{_ALWAYS} records all namespaces"),
    "load": no_meaning("recorded inputs are put into a run with `aten-dump replay`"),
    "is_online": no_meaning("dumps are compared from files"),
    "seed": no_meaning("the recorder never sets seeds"),
    "is_deterministic": no_meaning("the recorder never changes how ops run"),
    "enable_dataloader": no_meaning("steps end with `dump.step()` or the optimizer's step"),
    "acl_config": no_meaning("kernels of a device are not recorded"),
}


def is_msprobe(content: Mapping[str, Any]) -> bool:
    """Return True if a config is msprobe's."""
    return "dump_path" in content or "task" in content


def translate(content: Mapping[str, Any], source: str, task: str | None = None) -> Translation:
    """Translate a config; `task` stands in for the file's."""
    translation = Translation("msprobe", source)
    chosen = task or content.get("task") or "statistics"
    common = {key: found for key, found in content.items() if not _is_section(key)}
    translation.each({**common, "task": chosen}, KEYS)
    section = content.get(chosen)
    if section is not None and not isinstance(section, Mapping):
        raise ConfigError(f"{source}: {chosen} is {section!r:.100}; an object is expected")
    if section is not None:
        selected: dict[str, Any] = dict(section)
        if chosen == "tensor":
            selected.pop("summary_mode", None)  # says nothing there
        translation.each(selected, _OF_TASK)
    for key in content:
        if _is_section(key) and key != chosen:
            translation.drop(key, f"it is the section of another task than {chosen!r}")
    return translation


def _is_section(key: str) -> bool:
    return key in _TASKS or key in _ELSEWHERE


CONFIG: Final = OtherConfig(is_msprobe, translate)
