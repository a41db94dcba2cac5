"""The commands that show a dump in a browser: as one file, and over a local server."""
