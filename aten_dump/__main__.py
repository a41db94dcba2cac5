"""``python -m aten_dump``: the same as the command ``aten-dump``."""

from aten_dump.cli.main import main

if __name__ == "__main__":
    main(prog_name="python -m aten_dump")
