"""Functions on their way to workers: a library's by name, wherever the library is; the user's own by value."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.parameter_servers.scheduling import pickling
from jaxtribute.errors import ArgumentTypeError

SOURCE = "def helper(x):\n    return x + 1\n\n\ndef function(x):\n    return helper(x)\n"


class Odd:
    """Raises an odd error where it is pickled."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("jdmod"):
            del sys.modules[name]


def imported(monkeypatch: pytest.MonkeyPatch, root: Path, name: str) -> ModuleType:
    """Writes a module and imports it."""
    *packages, last = name.split(".")
    path = root
    for package in packages:
        path = path / package
        path.mkdir(parents=True)
        (path / "__init__.py").write_text("")
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{last}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(root))
    return importlib.import_module(name)


def by_name(function: Any) -> bool:
    """True if a function, and one that mentions it, travel by name: what comes back is the very same."""
    found = pickling.loads(pickling.dumps(lambda: function))()
    assert found(1) == function(1)
    return found is function


@pytest.mark.parametrize("where", ["lib/python3.13/site-packages", "dist-packages", "store"])
@pytest.mark.parametrize("module", ["jdmod_a", "jdmod_b.inner.deep"])
def test_a_function_of_a_library_travels_by_name(
    monkeypatch: pytest.MonkeyPatch, folder: Path, where: str, module: str
) -> None:
    root = folder / where
    if where == "store":  # as `pip install --target`, and as the store that some installers link to
        (root / "jdmod-1.0.dist-info").mkdir(parents=True)
        (root / "jdmod-1.0.dist-info" / "RECORD").write_text("")
    assert by_name(imported(monkeypatch, root, module).function)


def test_a_function_of_a_linked_library_travels_by_name(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "store").mkdir()
    (folder / "store" / "jdmod_c.py").write_text(SOURCE)
    site = folder / "site-packages"
    site.mkdir()
    (site / "jdmod_c.py").symlink_to(folder / "store" / "jdmod_c.py")
    monkeypatch.syspath_prepend(str(site))
    assert by_name(importlib.import_module("jdmod_c").function)


@pytest.mark.parametrize("module", ["jdmod_d", "jdmod_e.inner"])
def test_a_function_of_the_users_own_module_travels_by_value(
    monkeypatch: pytest.MonkeyPatch, folder: Path, module: str
) -> None:
    (folder / "jdmod.egg-info").mkdir()  # as an editable installation leaves it
    assert not by_name(imported(monkeypatch, folder, module).function)


def test_functions_of_python_and_of_libraries_travel_by_name() -> None:
    for function in (json.dumps, optax.adam, pickling.dumps, jd.nn.compute_average_loss, importlib.import_module):
        assert pickling.loads(pickling.dumps(function)) is function


@pytest.mark.parametrize("error", [ValueError("odd"), OSError("odd"), KeyError("odd"), NotImplementedError("odd")])
def test_whatever_pickling_raises_is_told(error: Exception) -> None:
    with pytest.raises(ArgumentTypeError, match=rf"cannot be sent to workers: {type(error).__name__}.*odd.*HINT"):
        pickling.dumps(Odd(error))
