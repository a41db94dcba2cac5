"""Builds what a release is made of, in dist/, and checks it. ``make release`` runs it; it signs and uploads nothing.

The sdist is built from the checkout, and a compiled wheel for each Python that is here from the sdist. Each wheel is installed into
an empty environment of its Python. With its light requirements alone it must import and show help; torch is installed
for one of them, and an example recorded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.checkout import ROOT

DIST = ROOT / "dist"
WORK = ROOT / "build" / "release"
LIGHT = ("click", "rich", "pyyaml", "tomli; python_version < '3.11'")  # what import and help need
TOOLS = Path(sysconfig.get_path("scripts"))
PROBE = """
import sys, aten_dump, importlib.metadata as m
from pathlib import Path
assert aten_dump.__version__ == m.version("aten-dump"), aten_dump.__version__
assert aten_dump.IS_COMPILED, aten_dump.__file__
assert Path(aten_dump.__file__).with_name("py.typed").is_file()
assert "torch" not in sys.modules
"""
TODO = """
Nothing was signed or uploaded. What a person does:

 1. See that CI is green on the commit, and that CHANGELOG.md has the date of today instead of "unreleased".
 2. git tag -s v{version} -m "aten_dump {version}" && git push origin v{version}
 3. Wait for the workflow: its wheels (x86-64 and aarch64, Python 3.10 to 3.14) and its dist are artifacts. Download them into dist/.
 4. twine check --strict dist/* && twine upload --repository testpypi dist/*
 5. In an empty environment: pip install --index-url https://test.pypi.org/simple/ --extra-index-url https://pypi.org/simple/ aten-dump=={version}
 6. twine upload dist/*, then a release on the repository with the lines of CHANGELOG.md, and the site of build/site.
"""


def run(*command: object, **environment: str) -> None:
    """Run a command and print it; its failure ends the release."""
    words = [str(word) for word in command]
    print("$", " ".join(words), flush=True)
    subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, check=True)


def pythons(asked: Iterable[str] = ()) -> Iterator[Path]:
    """Yield the Pythons that are here, one of each version that the package supports, or those that are asked for."""
    names = list(asked) or [sys.executable, *(f"python3.{minor}" for minor in range(10, 15)), *_of_pyenv()]
    seen = set()
    for name in names:
        found = shutil.which(name)
        code = "import sys; sys.version_info >= (3, 10) and print(*sys.version_info[:2])"
        said = subprocess.run([found or "false", "-c", code], capture_output=True, text=True, check=False).stdout
        if found and said and said not in seen:
            seen.add(said)
            yield Path(found)


def _of_pyenv() -> list[str]:
    return [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"), reverse=True)]


def version() -> str:
    """Return the version, which pyproject.toml, the package, the citation and the changelog must agree on.

    Raises:
        SystemExit: they do not.
    """
    patterns = {
        "pyproject.toml": r'^version = "(.+)"',
        "aten_dump/__init__.py": r'^__version__ = "(.+)"',
        "CITATION.cff": r"^version: (.+)",
        "CHANGELOG.md": r"^## \[(.+?)\]",
    }
    found = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = match[1] if match else "none"
    if len(set(found.values())) > 1:
        raise SystemExit(f"release: versions differ: {found}; write the same into all of them")
    return found["pyproject.toml"]


def build(python: Path, sdist: Path) -> Path:
    """Build a compiled wheel of the sdist for a Python, and give it the oldest manylinux tag that it fits."""
    made = WORK / "wheels"
    shutil.rmtree(made, ignore_errors=True)
    pins = {"PIP_CONSTRAINT": "constraints.txt", "PIP_BUILD_CONSTRAINT": "constraints.txt"}
    options = ("--disable-pip-version-check", "--quiet", "--no-deps", "--wheel-dir", made)
    run(python, "-m", "pip", "wheel", *options, sdist, ATEN_DUMP_COMPILE="1", **pins)
    (wheel,) = made.glob("*.whl")
    repaired = made / "repaired"
    run(TOOLS / "auditwheel", "repair", "--wheel-dir", repaired, wheel, PATH=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    (fits,) = repaired.glob("*.whl")
    return Path(shutil.copy(fits, DIST))


def install(python: Path, wheel: Path, *, whole: bool) -> None:
    """Install a wheel into an empty environment: it imports and shows help; whole, with torch, it records."""
    place = WORK / "environment"
    shutil.rmtree(place, ignore_errors=True)
    run(python, "-m", "venv", place)
    pip = (place / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "--quiet")
    pins = ("--constraint", ROOT / "constraints.txt")
    if whole:
        run(*pip, *pins, wheel)
        run(place / "bin" / "python", "-P", ROOT / "examples" / "quickstart.py", WORK / "dump", PYTHONPATH="")
    else:
        run(*pip, *pins, *LIGHT)
        run(*pip, "--no-deps", wheel)
    run(place / "bin" / "python", "-I", "-c", PROBE)
    run(place / "bin" / "aten-dump", "compare", "--help", PYTHONPATH="")


def audit(wheels: Iterable[Path]) -> None:
    """Check the files of wheels that say they keep to the limited API; mypyc's, beside them, are of one Python alone."""
    for wheel in wheels:
        place = WORK / "limited" / wheel.stem
        with zipfile.ZipFile(wheel) as content:
            files = [content.extract(name, place) for name in content.namelist() if name.endswith(".abi3.so")]
        if not files:
            raise SystemExit(f"release: {wheel.name} has no file of the limited API: were the C files compiled?")
        run(TOOLS / "abi3audit", "--strict", "--assume-minimum-abi3", "3.10", *files)


def main() -> None:
    """Build and check all of it, and print what a person has to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", help="Pythons to make wheels for; default: each that is here")
    parser.add_argument("--light", action="store_true", help="install torch into none of the environments")
    asked = parser.parse_args()
    number = version()
    for folder in (DIST, WORK):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST)
    (sdist,) = DIST.glob("*.tar.gz")
    for place, python in enumerate(pythons(asked.pythons)):
        install(python, build(python, sdist), whole=place == 0 and not asked.light)
    run(TOOLS / "twine", "check", "--strict", *sorted(DIST.iterdir()))
    audit(sorted(DIST.glob("*.whl")))
    print(
        "\n".join(
            ["", *(f"{file.stat().st_size:12,} bytes  {file.relative_to(ROOT)}" for file in sorted(DIST.iterdir()))]
        )
    )
    print(TODO.format(version=number))


if __name__ == "__main__":
    main()
