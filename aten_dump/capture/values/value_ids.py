"""What the parts of the recorder ask of the values: the id of a tensor, no matter how values are made and kept."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from ...store.records import Tree
from ..memory.storage_table import StorageTable


class ValueIds(ABC):
    """Gives tensors the ids of their values; see `ValueTable`."""

    storages: StorageTable  # the memory of those tensors

    @abstractmethod
    def value_of(self, tensor: torch.Tensor, keep: bool) -> int:
        """Return the id of the value that `tensor` is at this moment.

        Args:
            tensor: any tensor, of any layout, device and subclass; it is not changed.
            keep: keep the data that the configuration asks for.
        """

    @abstractmethod
    def tree_of(self, tensor: torch.Tensor, keep: bool) -> Tree:
        """Return `value_of` as the tree that stands for it in records; nobody changes it."""

    @abstractmethod
    def tree_again(self, tensor: torch.Tensor, seen: Tree, keep: bool) -> Tree:
        """Return `tree_of` a tensor; if nothing but its ``id()`` says which one it is, `seen`.

        Args:
            tensor: as for `value_of`.
            seen: the tree of the tensor that had this ``id()`` last, None if there is none. Had that one been let go
                of, this may be another in its place.
            keep: as for `value_of`.
        """

    @abstractmethod
    def hold(self) -> None:
        """Many tensors are asked for one after the other, and nothing runs between them: their data may be kept
        together. `release` belongs in a ``finally``.
        """

    @abstractmethod
    def release(self) -> None:
        """They have been asked for."""

    @abstractmethod
    def unknown_sum(self, like: torch.Tensor) -> int:
        """Return a new value with the geometry of `like` and no data: a sum that the recorder did not compute."""
