"""Callbacks for trainers of other packages, which end steps at the right place and know training from evaluation.

In come a trainer's events; out go the steps of a `DumpMode`. A file each, so that none needs the other's package.
"""
