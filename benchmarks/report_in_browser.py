"""Measures the report as a reader feels it, in Chromium, by its own performance API.

    python -m benchmarks.report_in_browser [--passes 1,25] [--served 300] [--folder FOLDER]

Of steps of a GPT-2 (8 layers, 24 wide; so many forward and backward passes in one step) it prints the file's size, the
time to the first view, keystrokes in the search, and the longest frame while all calls are scrolled through; of a
larger step the same over `aten-dump serve`, with the most memory that the server took.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from aten_dump import DumpConfig, DumpMode, open_dump
from tests.browser.opened import CHROMIUM_ARGUMENTS, Opened

WORDS = "phase:backward addmm"
COLUMNS = "| calls | from | file | first view | all calls | keystroke, longest | scrolling, longest frame | memory |"
# Sets the search a letter further, and waits until the frame after it has been drawn.
KEYSTROKE = """async text => {
  const box = document.getElementById('search');
  const begun = performance.now();
  box.value = text;
  box.dispatchEvent(new Event('input', { bubbles: true }));
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begun;
}"""
SCROLL = """async () => {
  const grid = document.querySelector('[role=treegrid]');
  let longest = 0, last = await new Promise(requestAnimationFrame);
  for (let i = 1; i <= 120; i++) {
    grid.scrollTop = (grid.scrollHeight * i) / 121;
    const now = await new Promise(requestAnimationFrame);
    if (i > 2) longest = Math.max(longest, now - last);
    last = now;
  }
  return longest;
}"""
FIRST_VIEW = "performance.getEntriesByName('first-view')[0].startTime"


def record(path: Path, passes: int) -> int:
    """Record one step, and return its calls."""
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = GPT2Config(n_layer=8, n_embd=24, n_head=2, vocab_size=128, n_positions=32, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, 128, (2, 16))
    if not path.exists():
        with DumpMode(DumpConfig(path=path, data="statistic"), model=model):
            for _ in range(passes):
                model(tokens, labels=tokens).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    commit = open_dump(path).rank(0, 0).summary().commit
    assert commit is not None
    return commit.calls


def measured(browser: Any, url: str) -> list[str]:
    """Return time to the first view, time to all calls, longest keystroke, longest frame."""
    report = Opened(browser, url)
    first = report.page.evaluate(FIRST_VIEW)
    begun = report.page.evaluate("performance.now()")
    report.page.evaluate("document.documentElement.removeAttribute('data-shown'); location.hash = '#view=calls'")
    report.page.wait_for_selector("html[data-shown=calls] [role=treegrid]", timeout=120_000)
    calls = report.page.evaluate("performance.now()") - begun
    report.page.click("text=Open all")
    frame = report.page.evaluate(SCROLL)
    keys = [report.page.evaluate(KEYSTROKE, WORDS[: at + 1]) for at in range(len(WORDS))]
    report.close()
    return [f"{first:.0f} ms", f"{calls:.0f} ms", f"{max(keys):.0f} ms", f"{frame:.0f} ms"]


def of_file(browser: Any, path: Path, calls: int) -> str:
    output = path.with_suffix(".html")
    subprocess.run(
        [sys.executable, "-m", "aten_dump", "report", str(path), "-o", str(output)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    cells = [f"{calls:,}", "file", f"{output.stat().st_size / 1000:.0f} kB", *measured(browser, output.as_uri()), ""]
    return f"| {' | '.join(cells)} |"


def of_server(browser: Any, path: Path, calls: int) -> str:
    command = [sys.executable, "-m", "aten_dump", "serve", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        cells = [f"{calls:,}", "serve", "", *measured(browser, server.stdout.readline().split()[0])]
        status = Path(f"/proc/{server.pid}/status").read_text()
        most = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
        server.send_signal(signal.SIGINT)
    return f"| {' | '.join([*cells, f'{int(most) / 1000:.0f} MB'])} |"


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", default="1,30", help="sizes of steps shown as a file (%(default)s)")
    parser.add_argument("--served", default="300", help="sizes of steps shown by serve (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where dumps go, or are already")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="aten-dump-"))
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    print(f"{COLUMNS}\n|{'---|' * COLUMNS.count(' | ')}---|", flush=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_ARGUMENTS)
        for sizes, show in ((given.passes, of_file), (given.served, of_server)):
            for passes in filter(None, sizes.split(",")):
                path = folder / f"passes{passes}"
                print(show(browser, path, record(path, int(passes))), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
