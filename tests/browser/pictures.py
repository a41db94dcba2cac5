"""Takes the pictures of README.md and docs/report.md, of the story that examples/wrong_kernel.py tells.

    python -m tests.browser.pictures [FOLDER]     FOLDER is where dumps and reports go, or are already

Its name is seen in the pictures, so give it one such as /home/me/gpt2. Look at them before they are committed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser import dumps
from tests.browser.opened import CHROMIUM_ARGUMENTS, Opened
from tests.checkout import ROOT
from tests.report.serve.server_process import Served

PICTURES = ROOT / "docs" / "pictures"
COLOURS = 192  # a picture of text and lines needs no more
CALL = "Aten.addmm.3.forward"
# name -> address, height, and whether there is a dark one too
OF_THE_STORY: dict[str, tuple[str, int, bool]] = {
    "answer": ("#view=answer", 760, True),
    "strip": (f"#view=strip&call={CALL}", 640, True),
    "calls": ("#view=calls&q=status:different+kind:aten", 520, False),
    "call": (f"#call={CALL}", 760, False),
    "graph": ("#view=graph&module=transformer.h.0.mlp", 620, False),
    "memory": ("#view=memory", 760, False),
}


def take(browser: Any, url: str, name: str, address: str, height: int, *, dark: bool = False) -> None:
    report = Opened(browser, url, address, height=height, dark=dark)
    report.page.wait_for_timeout(1500)
    path = PICTURES / f"{name}{'-dark' if dark else ''}.png"
    report.page.screenshot(path=path)
    report.close()
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="aten-dump-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "other").exists():
        shutil.copy(ROOT / "examples" / "wrong_kernel.py", folder / "train.py")
        subprocess.run([sys.executable, "train.py", "."], cwd=folder, check=True)
    story, steps = folder / "story.html", folder / "steps.html"
    if not (folder / "steps").exists():
        dumps.record(folder / "steps", 8)
    for output, paths in ((story, ["other", "here"]), (steps, ["steps"])):
        if not output.exists():
            subprocess.run(
                [sys.executable, "-m", "aten_dump", "report", *paths, "-o", output.name], cwd=folder, check=True
            )
    PICTURES.mkdir(exist_ok=True)
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_ARGUMENTS)
        for name, (address, height, has_dark) in OF_THE_STORY.items():
            for dark in (False, True)[: 1 + has_dark]:
                take(browser, story.as_uri(), name, address, height, dark=dark)
        take(browser, steps.as_uri(), "steps", "#view=steps", 620)
        served = Served(folder / "other", folder / "here")
        take(browser, served.url, "tensor", f"#view=tensor&call={CALL}&value=output.0&show=difference", 760)
        served.stop()
        browser.close()


if __name__ == "__main__":
    main()
