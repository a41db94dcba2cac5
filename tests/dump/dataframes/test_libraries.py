"""A library that is not there is told of; one that is there and broken shows its own error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aten_dump.dump.dataframes.libraries import LIBRARIES
from aten_dump.errors import MissingDataError

PACKAGES = {"pandas": "pandas", "polars": "polars", "arrow": "pyarrow"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_not_installed(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[library], None)
    with pytest.raises(MissingDataError, match=rf"needs {PACKAGES[library]}: pip install 'aten-dump\["):
        LIBRARIES[library]({}, {})


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_lacks_something_of_its_own(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = PACKAGES[library]
    (tmp_path / f"{package}.py").write_text("import no_such_package_of_its_own")
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package_of_its_own"):
        LIBRARIES[library]({}, {})
