"""Counting of writes in autograd's version counters, where a dispatch mode keeps them from being counted.

``aten::_foreach_*_`` ops may write through in-place ops that they run inside, which count the write; whether they do
depends on the device's kernel. Under any dispatch mode those run below the key that counts, and "modified by an
inplace operation" would not be raised.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final

import torch

_KEY: Final = torch._C.DispatchKey.ADInplaceOrView


class inner_writes_counted:
    """Context in which an op that a mode runs counts what ops inside it write, as in the bare program."""

    __slots__ = ("_was_excluded",)

    def __enter__(self) -> None:
        self._was_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY)
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, self._was_excluded)
