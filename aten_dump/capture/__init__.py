"""Watch a PyTorch program and hand what it does to a sink.

Imports `config`, `errors` and `store` only: capture never reads a dump.
"""
