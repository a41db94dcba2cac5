"""Reads the sections of a report back: what page/data/columns.js does, in Python, for the tests."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

SECTION = re.compile(r'<script type="application/octet-stream" data-section="([^"]+)">([^<]*)</script>')
SPECIAL = {124: None, 127: math.nan, 126: math.inf, 125: -math.inf, 123: -0.0}


class Read:
    """One section: `json` values and `columns` of integers."""

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        header = json.loads(data[4 : 4 + size])
        self.json: dict[str, Any] = header["json"]
        self.columns: dict[str, list[int]] = {}
        at = 4 + size
        for name, count, width, signed, delta in header["columns"]:
            planes = np.frombuffer(data, np.uint8, count * width, at).reshape(width, count)
            at += count * width
            values = [sum(int(plane[i]) << 8 * k for k, plane in enumerate(planes)) for i in range(count)]
            if signed:
                values = [(value >> 1) ^ -(value & 1) for value in values]
            self.columns[name] = list(np.cumsum(np.array(values, np.int64))) if delta else values
        assert at == len(data)

    def numbers(self, name: str) -> list[float | None]:
        """Return decimals as numbers."""
        pairs = zip(self.columns[f"{name}.digits"], self.columns[f"{name}.exponent"], strict=True)
        return [SPECIAL[e] if e in SPECIAL else float(f"{d}e{e}") for d, e in pairs]


def sections_of(page: Path) -> dict[str, Read]:
    """Return the sections of a written report."""
    found = SECTION.findall(page.read_text(encoding="utf-8"))
    return {name: Read(gzip.decompress(base64.b64decode(text))) for name, text in found}
