"""Modules are joined into one script that runs each once, after what it imports; other forms are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aten_dump.report.html.document import PAGE, LinkError, link


def write(folder: Path, **modules: str) -> Path:
    for name, source in modules.items():
        path = folder / f"{name.replace('__', '/')}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder


def test_a_module_comes_after_what_it_imports_and_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        main='import { a } from "./in/a.js";\nimport { b,\n  c } from "./b.js";\nshow(a, b, c);\n',
        in__a='import { b } from "../b.js";\nexport const a = b;\n',
        b="/** Says b. */\nexport const b = 1;\nexport async function c() {}\n",
    )
    script = link(tmp_path, "main.js")
    starts = [script.index(f"const {name} =") for name in ("$b", "$in_a", "$main")]
    assert starts == sorted(starts)
    assert script.count("const b = 1;") == 1
    assert "const {b, c} = $b;" in script
    assert "return {b, c};" in script
    assert "Says b" not in script


@pytest.mark.parametrize(
    "source",
    [
        'import x from "./b.js";\n',
        'import * as x from "./b.js";\n',
        'import { b as x } from "./b.js";\n',
        'import "./b.js";\n',
        "export default 3;\n",
        'export { b } from "./b.js";\n',
        "export let x = 3;\n",
        'import { b } from "elsewhere";\n',
    ],
)
def test_other_forms_are_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(LinkError, match=r"main\.js"):
        link(write(tmp_path, main=source, b="export const b = 1;\n"), "main.js")


def test_circles_are_refused(tmp_path: Path) -> None:
    write(
        tmp_path,
        main='import { b } from "./b.js";\nexport const a = 1;\n',
        b='import { a } from "./main.js";\nexport const b = a;\n',
    )
    with pytest.raises(LinkError, match=r"main\.js -> b\.js -> main\.js"):
        link(tmp_path, "main.js")


def test_every_module_of_the_page_is_used() -> None:
    script = link(PAGE, "main.js")
    modules = {path.relative_to(PAGE).with_suffix("").as_posix() for path in PAGE.rglob("*.js")} - {"boot"}
    joined = set(re.findall(r"^const \$(\w+) = \(\(\) => \{$", script, re.MULTILINE))
    assert joined == {re.sub(r"\W", "_", name) for name in modules}
