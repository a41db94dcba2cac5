"""What the C file beside this one offers where it was compiled."""

def hide(*objects: object) -> None:
    """Have Python's collector pass over these objects."""
