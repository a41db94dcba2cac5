"""The programs under trial, each of a second or less."""

from __future__ import annotations

from ..training import Program
from . import decisions, images, language, routing, sequences

PROGRAMS: dict[str, Program] = {
    program.name: program for module in (language, sequences, images, routing, decisions) for program in module.PROGRAMS
}
