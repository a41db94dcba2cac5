"""One small model on two ranks and on one: python -m tests.browser.two_ranks ddp FOLDER, with RANK and WORLD_SIZE."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed import layouts


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    layouts.alone(layouts.single, folder)
    layouts.init(folder, 2)
    layouts.train(folder / "ddp", layouts.replicated(layouts.build()), layouts.consecutive)
    torch.save({}, folder / f"rank{layouts.RANK}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[2]))
