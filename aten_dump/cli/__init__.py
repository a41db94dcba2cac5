"""The command ``aten-dump``; ``main.py`` has the table of subcommands, each in a file of its own."""
