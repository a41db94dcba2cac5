"""Lines of code that calls came from, out of one folder only: a dump may name any file."""

from __future__ import annotations

from pathlib import Path


class SourceLines:
    """Reads lines of files beneath a folder; of no files without one."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._files: dict[str, list[str]] = {}

    def line(self, file: str, number: int) -> str:
        """Return a line without its indentation; ``""`` where it cannot or must not be read."""
        lines = self._files.get(file)
        if lines is None:
            lines = self._files[file] = self._read(file)
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    def _read(self, file: str) -> list[str]:
        if self._root is None:
            return []
        path = Path(file).resolve()
        if not path.is_relative_to(self._root) or path.suffix != ".py":
            return []
        try:
            return path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # the code has moved since: the line's number is still told
            return []
