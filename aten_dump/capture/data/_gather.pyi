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
def stretch(item: int, shape: tuple[int, ...], strides: tuple[int, ...], /) -> int: ...
def use_team(address: int, /) -> None: ...
