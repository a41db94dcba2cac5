"""Fetches what lies in vendor/ from npm, in the versions that VENDORED.json names; ends if a checksum differs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[2] / "aten_dump" / "report" / "html" / "vendor"


def main() -> None:
    for folder, facts in json.loads((VENDOR / "VENDORED.json").read_text()).items():
        fetch(folder, f"{facts['package']}@{facts['version']}", facts["files"])


def fetch(folder: str, package: str, files: dict[str, str]) -> None:
    """Put the files of a package into a folder, all or none."""
    with tempfile.TemporaryDirectory() as scratch:
        packed = subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", scratch, package],
            check=True,
            capture_output=True,
            text=True,
        )
        with tarfile.open(Path(scratch) / packed.stdout.strip().splitlines()[-1]) as archive:
            contents = {name: archive.extractfile(f"package/{name}").read() for name in files}  # type: ignore[union-attr]
    for name, content in contents.items():
        found = hashlib.sha256(content).hexdigest()
        if found != files[name]:
            sys.exit(f"{package}: {name} has checksum {found}, VENDORED.json says {files[name]}; nothing was changed")
    for name, content in contents.items():
        (VENDOR / folder / Path(name).name).write_bytes(content)
    print(f"{package}: {', '.join(Path(name).name for name in files)}")


if __name__ == "__main__":
    main()
