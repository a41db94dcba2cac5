"""``aten-dump serve``: the report over a local server."""

from __future__ import annotations

from pathlib import Path

import click

from .... import __version__
from ....report.html.payload.sections import Subject
from ....report.serve.local_server import serve
from ....report.serve.served_dump import ServedDump
from ...console import echo
from ...ending import end_without_threads
from ...formats import format_option, print_record
from ...options import dump_argument, open_all
from ...workers import jobs_option
from .report import compared


@click.command("serve")
@dump_argument
@click.argument("baseline", type=click.Path(path_type=Path), required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1.  [default: a free one]")
@format_option("serve", more=", printed as soon as the page can be opened")
@jobs_option
def command(dump: Path, baseline: Path | None, port: int, form: str, jobs: int) -> None:
    """Show DUMP, or its comparison with BASELINE, in a browser. The dump can have any size.

    The page is that of `report`, with heat maps, histograms and elements of tensors in addition. New steps of a dump
    that is still being written appear by themselves. Only this machine can reach the page, at the printed address.
    Nothing is written. Ctrl-C ends it.

    \b
    Examples
      aten-dump serve dump
      aten-dump serve npu_dump gpu_dump --port 8000
    On a cluster, forward the port and open the address on your own machine:
      ssh -L 8000:127.0.0.1:8000 node aten-dump serve dump --port 8000
    """  # noqa: D301 - \b keeps click from filling lines
    target = open_all(dump)
    base = None if baseline is None else open_all(baseline)
    comparison = None if baseline is None else compared(dump, baseline, jobs)
    served = ServedDump(Subject(target, __version__, base, comparison))

    def say(address: str) -> None:
        if form == "json":
            print_record({"address": address})
        echo(f"{address}  (Ctrl-C ends it)")

    serve(served, port, say)
    end_without_threads()  # sections may still be made that nobody waits for
