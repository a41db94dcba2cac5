def copy(
    address: int,
    item: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    first: int,
    past: int,
    to: int,
    threads: int = 1,
    /,
) -> None: ...
def xxh3(
    address: int,
    item: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    ring: int,
    ring_bytes: int,
    threads: int,
    /,
) -> int: ...
def stretch(item: int, shape: tuple[int, ...], strides: tuple[int, ...], /) -> int: ...
def use_team(address: int, /) -> None: ...
