"""What the C file beside this one offers where it was compiled."""

def make_folder(outer: bytes, name: bytes, /) -> int:
    """Make the folder `name` in the folder `outer`, which is made if need be; return it, open. Neither may be a link.

    Raises:
        OSError: one cannot be made or opened; FileNotFoundError also where the folder around `outer` is not there.
    """

def make_file(folder: int, partial: bytes, name: bytes, flags: int, data: bytes, /) -> tuple[int, int]:
    """Make the file `partial` in an open folder, write `data`, rename it to `name` and close it.

    Returns -1 and 0; where that failed, the file as it is then, or -1 where it could not be made, and the errno.
    """
