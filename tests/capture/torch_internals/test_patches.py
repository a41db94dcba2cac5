"""Functions of torch that are replaced are put back as they were, and those of others are left alone."""

from __future__ import annotations

from typing import Any

from aten_dump.capture.torch_internals.patches import Patch


class Base:
    def method(self) -> str:
        return "base"


class Derived(Base):
    @classmethod
    def built(cls) -> str:
        return cls.__name__


def ours(self: Any) -> str:
    return "ours"


def test_what_was_there_is_there_again() -> None:
    before = vars(Derived)["built"]
    patch = Patch(Derived, "built", classmethod(ours))
    assert Derived.built() == "ours"
    assert patch.undo()
    assert vars(Derived)["built"] is before


def test_an_inherited_method_is_inherited_again() -> None:
    patch = Patch(Derived, "method", ours)
    assert (Derived().method(), Base().method()) == ("ours", "base")
    assert patch.undo()
    assert "method" not in vars(Derived)
    assert Derived().method() == "base"


def test_what_somebody_put_over_ours_stays() -> None:
    patch = Patch(Base, "method", ours)
    below = Base.method
    theirs = Patch(Base, "method", lambda self: f"theirs over {below(self)}")
    assert not patch.undo()
    assert Base().method() == "theirs over ours"
    assert theirs.undo()
    assert patch.undo(), "theirs has gone, ours can go"
    assert Base().method() == "base"
