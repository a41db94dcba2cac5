"""Has a fuzzer that watches which lines run search for bytes that are neither right data nor refused.

``python -m tests.torture.coverage_fuzzing index -max_total_time=600``, with atheris installed (``make fuzz``); what
follows the target's name goes to libFuzzer. It begins with the files of the golden dumps."""

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris
import msgpack

with atheris.instrument_imports(include=["aten_dump.store", "aten_dump.dump", "aten_dump.config_files"]):
    from aten_dump import DumpConfig
    from aten_dump.dump import open_dump
    from aten_dump.store.checking.verification import verify
    from aten_dump.store.run_json import RUN_FILE, read_run
    from aten_dump.store.shards import read_header

from aten_dump.errors import AtenDumpError
from tests.torture.__main__ import DUMPS
from tests.torture.changing import signed

CONFIGS = (b'{"path": "d", "steps": "0|5-8"}', b'{"task": "statistics", "step": [0]}')


def index(folder: Path, data: bytes) -> None:
    rank = folder / "step0" / "rank0"
    rank.mkdir(parents=True, exist_ok=True)
    (rank / "index.msgpack").write_bytes(data)
    verify(rank)
    found = open_dump(folder).rank(0, 0)
    for call in found.calls:
        call.name, call.inputs, call.outputs, call.stack, call.forward
    for value in found.values:
        value.shape, value.stats, value.data, value.producer


def records(folder: Path, data: bytes) -> None:
    """An index of the records in some bytes, under right checksums."""
    unpacker = msgpack.Unpacker(use_list=True, strict_map_key=False, unicode_errors="replace")
    unpacker.feed(data)
    try:
        whole = signed([row for row in unpacker if isinstance(row, list)])
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return
    index(folder, whole)


def file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], None]:
    def one(folder: Path, data: bytes) -> None:
        (folder / name).write_bytes(data)
        read(folder / name)

    return one


TARGETS = {  # by name: what reads the bytes, and the files of a dump that it begins with
    "index": (index, "index.msgpack"),
    "records": (records, "index.msgpack"),
    "shard": (file("shard-00000.safetensors", read_header), "*.safetensors"),
    "run": (file(RUN_FILE, lambda path: read_run(path.parent)), RUN_FILE),
} | {suffix: (file(f"config.{suffix}", DumpConfig.from_file), "none") for suffix in ("json", "yaml", "toml")}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    target, pattern = TARGETS[sys.argv[1]]
    with TemporaryDirectory() as read, TemporaryDirectory() as seeds:
        for number, seed in enumerate([path.read_bytes() for dump in DUMPS for path in dump.rglob(pattern)] or CONFIGS):
            Path(seeds, str(number)).write_bytes(seed[:20_000])

        def one(data: bytes) -> None:
            with suppress(AtenDumpError):
                target(Path(read), data)

        atheris.Setup([sys.argv[0], "-timeout=100", *sys.argv[2:], seeds], one)
        atheris.Fuzz()
