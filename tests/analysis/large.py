"""Two dumps of one large tensor, in sparse files, and what comparing them takes: `python -m tests.analysis.large DIR BYTES`."""

from __future__ import annotations

import struct
import sys
import time
from pathlib import Path

import xxhash

from aten_dump import compare
from aten_dump.store import records as r
from aten_dump.store.writing.index_writer import IndexWriter
from tests.store.recording import call, header

HEADER_BYTES = 4096
_BLOCK = 1 << 20


def sparse_dump(root: Path, nbytes: int, last: float) -> Path:
    """Write a dump with one call that makes f32[nbytes / 4] of zeros with another last element."""
    folder = root / "step0" / "rank0"
    folder.mkdir(parents=True)
    entry = f'{{"1":{{"dtype":"F32","shape":[{nbytes // 4}],"data_offsets":[0,{nbytes}]}}}}'
    with open(folder / "shard-00000.safetensors", "wb") as file:
        file.write((HEADER_BYTES - 8).to_bytes(8, "little") + entry.encode().ljust(HEADER_BYTES - 8))
        file.truncate(HEADER_BYTES + nbytes - 4)
        file.seek(0, 2)
        file.write(struct.pack("<f", last))
    index = IndexWriter.create(folder / "index.msgpack")
    index.add(
        [
            header(data="tensor", level="aten", statistics=[], hash=None),
            r.Text(r.TEXT, 1, "float32"),
            r.Text(r.TEXT, 2, "cpu"),
            r.Op(r.OP, 1, 0, "aten::relu", "Aten", "relu", ["self"]),
            r.Storage(r.STORAGE, 1, nbytes, 2),
            r.Value(r.VALUE, 1, 1, 0, 0, 1, [nbytes // 4], [1], 0, None),
            r.Shard(r.SHARD, 0, HEADER_BYTES),
            r.Blob(r.BLOB, 1, 0, 0, nbytes, "F32", [nbytes // 4], checksum(nbytes, last)),
            r.Data(r.DATA, 1, 1, 0, 0),
            call(1, outputs=[r.TREE_VALUE, 1]),
            r.Commit(r.COMMIT, 1, 1, 1, nbytes, [HEADER_BYTES + nbytes], {}),
        ]
    )
    index.flush()
    index.close()
    return root


def checksum(nbytes: int, last: float) -> bytes:
    """Return that of zeros with another last element."""
    digest = xxhash.xxh3_64()
    for start in range(0, nbytes - 4, _BLOCK):
        digest.update(bytes(min(_BLOCK, nbytes - 4 - start)))
    digest.update(struct.pack("<f", last))
    return digest.digest()


def peak_bytes() -> int:
    """Return the greatest resident set of this process so far: VmHWM, which includes mapped pages of files."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main(root: Path, nbytes: int) -> None:
    """Compare a small pair, then the large one; print the peaks before and after, in bytes, and the seconds."""
    for size in (1 << 20, nbytes):
        base = sparse_dump(root / f"baseline{size}", size, 1.0)
        target = sparse_dump(root / f"target{size}", size, 1.5)
        before, begun = peak_bytes(), time.process_time()
        found = compare(target, base)
        assert found.verdict == "different", found.answer()
        row = next(found.rows)
        assert row.closeness is not None and row.closeness.metrics is not None
        assert row.closeness.metrics.max_abs_at == (size // 4 - 1,)
        assert row.closeness.metrics.count == size // 4
    print(before, peak_bytes(), time.process_time() - begun)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
