"""What mkdocs cannot read by itself: the README as the first page, commands, notebooks, examples, JSON schemas.

Each becomes a page of markdown before the site is built (mkdocs' hook `on_files`). Links of a page to files outside of
this folder lead to the pages made of them.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COLUMNS = 110  # of help texts
# A file of the checkout and the page that is made of it.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PAGES["LICENSE"] = "license.md"
PAGES["docs/json"] = "reference/json.md"
FETCHED = re.compile(r"<(?:script|img|source|iframe|link rel=.(?:stylesheet|preconnect).)[^>]*\"(https?://[^\"]+)")
LOG = logging.getLogger("mkdocs.aten_dump")
LINK = re.compile(r"(\]\(|(?:src|srcset)=\")([^)\"#:\s]+)(#[^)\"\s]*)?(?=[)\"])")


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file that is none yet."""
    from mkdocs.structure.files import File, InclusionLevel

    made = {uri: (ROOT / name).read_text(encoding="utf-8") for name, uri in PAGES.items() if (ROOT / name).is_file()}
    made["license.md"] = f"# License\n\n```text\n{made['license.md']}```\n"
    made["reference/cli.md"] = commands_page()
    made["reference/json.md"] = json_page()
    for example in sorted((ROOT / "examples").glob("*.py")):
        source = example.read_text(encoding="utf-8")
        made[f"examples/{example.stem}.md"] = f"# {example.name}\n\n```python\n{source}```\n"
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{notebook.stem}.md"] = notebook_page(json.loads(notebook.read_text(encoding="utf-8")))
    for uri, text in made.items():
        listed = uri.startswith(("index", "changelog", "reference", "notebooks"))  # others are reached by links
        level = InclusionLevel.INCLUDED if listed else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=text, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files outside of docs into links to their pages."""
    here = posixpath.dirname(page.file.src_uri)
    origin = next((name for name, uri in PAGES.items() if uri == page.file.src_uri), f"docs/{page.file.src_uri}")

    def new(match: re.Match[str]) -> str:
        before, link, anchor = match[1], match[2], match[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
        return f"{before}{posixpath.relpath(page_of(target), here or '.')}{anchor}"

    return LINK.sub(new, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Warn, which ends a strict build, of what a page would fetch from the network."""
    for address in FETCHED.findall(output):
        LOG.warning("%s would fetch %s", page.file.src_uri, address)
    return output


def page_of(path: str) -> str:
    """Return the page of the site for a file of the checkout, by its path there."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("examples"):
        return path.removesuffix(".py") + ".md" if path.endswith(".py") else "examples/quickstart.md"
    return path.removeprefix("docs/").replace(".ipynb", ".md")


def commands_page() -> str:
    """Return the help of each command, as the command line prints it."""
    import click

    sys.path.insert(0, str(ROOT))
    from aten_dump.cli.main import main

    def parts(command: click.Command, path: list[str]) -> Iterator[str]:
        context = click.Context(command, info_name=" ".join(path), max_content_width=COLUMNS, terminal_width=COLUMNS)
        yield f"## {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```\n"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from parts(below, [*path, name])

    return "# Options of each command\n\n" + "\n".join(parts(main, ["aten-dump"]))


def json_page() -> str:
    """Return a page of the schemas of what commands print as JSON."""
    lines = [
        "# JSON that commands print",
        "",
        "`--format json` prints one object. Each has a [JSON Schema](https://json-schema.org). Within a version",
        "of a schema fields may be added; none changes its meaning.",
        "",
        "| schema | what it describes |",
        "|---|---|",
    ]
    for file in sorted((ROOT / "docs" / "json").glob("*.schema.json")):
        schema = json.loads(file.read_text(encoding="utf-8"))
        lines.append(f"| [{file.name}](../json/{file.name}) | {schema.get('description') or schema['title']} |")
    return "\n".join([*lines, ""])


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as markdown: its texts, its code, and what that printed."""
    return "\n".join(part for cell in notebook["cells"] for part in _cell(cell))


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield f"{source}\n"
        return
    yield f"```python\n{source}\n```\n"
    for output in cell["outputs"]:
        data = output.get("data", {})
        text = "".join(output.get("text", "") or data.get("text/plain", ""))
        if "text/html" in data:
            yield f"<div>{''.join(data['text/html'])}</div>\n".replace("\n\n", "\n")
        elif text:
            yield f"```text\n{text.rstrip()}\n```\n"
