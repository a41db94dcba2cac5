"""Runs this trial: python -m tests.trial.layouts [word of a case's name ...] [--sample N] [--seed S] [--json FILE]."""

import sys

from tests.trial.rewritings.__main__ import main

from .cases import cases_of, load

if __name__ == "__main__":
    PROGRAMS = load()
    sys.exit(main("tests.trial.layouts", PROGRAMS, [case for one in PROGRAMS.values() for case in cases_of(one)]))
