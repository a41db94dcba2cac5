"""Has a fuzzer that watches which lines run search for bytes that are neither right data nor refused.

``python -m tests.torture.coverage_fuzzing index -max_total_time=600``, with atheris installed (``make fuzz``); other
words than the target's name go to libFuzzer. It begins with the files of the golden dumps.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris
import msgpack
import torch  # noqa: F401  # before what is watched

with atheris.instrument_imports(include=["aten_dump.store", "aten_dump.dump", "aten_dump.config_files"]):
    from aten_dump import DumpConfig
    from aten_dump.dump import open_dump
    from aten_dump.store.checking.verification import verify
    from aten_dump.store.run_json import RUN_FILE, read_run
    from aten_dump.store.shards import read_header

from aten_dump.errors import AtenDumpError
from tests.torture.__main__ import DUMPS, SECONDS
from tests.torture.changing import signed

_CONFIGS = (b'{"path": "d", "steps": "0|5-8", "level": "mix"}', b'{"task": "statistics", "step": [0], "level": "L1"}')


def _index(folder: Path, data: bytes) -> None:
    rank = folder / "step0" / "rank0"
    rank.mkdir(parents=True, exist_ok=True)
    (rank / "index.msgpack").write_bytes(data)
    verify(rank)
    found = open_dump(folder).rank(0, 0)
    for call in found.calls:
        call.name, call.inputs, call.outputs, call.stack, call.forward
    for value in found.values:
        value.shape, value.stats, value.data, value.producer


def _records(folder: Path, data: bytes) -> None:
    """An index of the records in some bytes, under right checksums."""
    unpacker = msgpack.Unpacker(use_list=True, strict_map_key=False, unicode_errors="replace")
    unpacker.feed(data)
    try:
        rows = [row for row in unpacker if isinstance(row, list)]
        data = signed(rows)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return
    _index(folder, data)


def _file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], None]:
    def one(folder: Path, data: bytes) -> None:
        (folder / name).write_bytes(data)
        read(folder / name)

    return one


TARGETS: dict[str, Callable[[Path, bytes], None]] = {
    "index": _index,
    "records": _records,
    "shard": _file("shard-00000.safetensors", read_header),
    "run": _file(RUN_FILE, lambda path: read_run(path.parent)),
    "json": _file("config.json", DumpConfig.from_file),
    "yaml": _file("config.yaml", DumpConfig.from_file),
    "toml": _file("config.toml", DumpConfig.from_file),
}
_SEEDS = {"index": "index.msgpack", "records": "index.msgpack", "shard": "*.safetensors", "run": RUN_FILE}


def main() -> None:
    target, *options = sys.argv[1:]
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as name:
        folder, seeds = Path(name) / "read", Path(name) / "seeds"
        folder.mkdir()
        seeds.mkdir()
        files = [path.read_bytes()[:20_000] for dump in DUMPS for path in dump.rglob(_SEEDS.get(target, "nothing"))]
        for number, data in enumerate(files or _CONFIGS):
            (seeds / str(number)).write_bytes(data)

        def one(data: bytes) -> None:
            try:
                TARGETS[target](folder, data)
            except AtenDumpError:
                pass

        atheris.Setup([sys.argv[0], f"-timeout={SECONDS}", "-max_len=20000", *options, str(seeds)], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
