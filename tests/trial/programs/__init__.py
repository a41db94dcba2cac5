"""The programs under trial, each of a second or less."""

from __future__ import annotations

from ..training import Program
from . import decisions, densities, fields, images, language, learners, routing, sequences

PROGRAMS: dict[str, Program] = {
    program.name: program
    for module in (language, sequences, images, routing, decisions, densities, fields, learners)
    for program in module.PROGRAMS
}
