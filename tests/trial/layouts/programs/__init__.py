"""The programs of this trial, one file each, with a function `task(on)`."""
