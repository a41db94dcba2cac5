"""What the C file beside this one offers where it was compiled."""

def make_folder(outer: bytes, name: bytes, /) -> int:
    """Make the folder `name` in the folder `outer`, which is made if need be; return it, open. Neither may be a link.

    Raises:
        OSError: one cannot be made or opened; FileNotFoundError also where the folder around `outer` is not there.
    """

def make_file(folder: int, partial: bytes, name: bytes, flags: int, data: bytes, /) -> tuple[int, int, bool]:
    """Make the file `partial` in an open folder, write `data`, rename it to `name` and close it.

    Returns -1, 0 and True; where that failed, the file, or -1 where it is not open, the errno, and whether it was made.
    """
