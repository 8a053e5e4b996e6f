"""The fence: the core imports no add-on, add-ons import the core through its port, and each of them may be missing."""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import jaxtribute as jd
from jaxtribute import extending
from processes import run_python

ROOT = Path(__file__).parents[1]
PACKAGE = Path(jd.__file__).parent
PRIVATE = "jaxtribute._src"
FENCE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["fence"]
MOST_NAMES = 100
PORT = [name for name in dir(extending) if not name.startswith("_")]
OF_STRATEGIES = {
    *("AutoSum", "OneDeviceSum", "PackedSum", "Packs", "TreeSum", "default_devices"),
    *("CentralPolicy", "MirroredPolicy", "OnReadPolicy", "PlainPolicy", "ShardedPolicy"),
}
"""Names of the port that strategies of users' own are made of, and no add-on needs."""


def files(places: list[str]) -> set[Path]:
    """The files of a list of folders and files."""
    whole = [ROOT / place for place in places]
    return {path for place in whole for path in ([place] if place.suffix == ".py" else place.rglob("*.py"))}


CORE, FACADE = files(FENCE["core"]), files(FENCE["facade"])
ADDONS = {path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "_src"} - CORE - FACADE


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


@cache
def imported(path: Path) -> set[str]:
    """The private names that a file imports, wherever in it, or says in a text that is a dotted name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            names.add(node.value)
    return {name for name in names if name.startswith(PRIVATE)}


def crossings(start: set[Path], end: set[Path]) -> Iterator[str]:
    """The imports of files of one side of modules of the other."""
    for path in sorted(start):
        for name in sorted(imported(path)):
            module = name if name in MODULES else name.rpartition(".")[0]
            if MODULES.get(module) in end:
                yield f"{name_of(path)} imports {name}"


def test_the_core_imports_no_addon() -> None:
    assert list(crossings(CORE, ADDONS)) == []
    assert list(crossings(CORE, FACADE)) == ["jaxtribute.extending imports jaxtribute._src.public.lazy_names"]


def test_addons_import_the_core_through_the_port() -> None:
    assert list(crossings(ADDONS, CORE)) == []


def test_the_port_has_few_names() -> None:
    assert len(PORT) <= MOST_NAMES


@pytest.mark.parametrize("name", PORT)
def test_each_name_of_the_port_is_documented(name: str) -> None:
    value = getattr(extending, name)
    own = inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value) else ""
    assert own or f"`{name}`" in (extending.__doc__ or ""), f"jd.extending.{name} has no docstring"


def test_every_name_of_the_port_is_used_or_makes_strategies() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in ADDONS)
    assert [name for name in PORT if name not in text and name not in OF_STRATEGIES] == []


BLOCKED = """
    import sys

    class Fence:
        def find_spec(self, name, path=None, target=None):
            if name.startswith({prefixes!r}):
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Fence())
    import jaxtribute as jd
"""


@pytest.mark.slow
def test_the_demo_runs_where_every_addon_is_missing() -> None:
    prefixes = tuple(sorted({name_of(path) for path in ADDONS}))
    text = run_python(
        BLOCKED.format(prefixes=prefixes)
        + f"""
    import runpy

    try:
        print(jd.Model)
    except jd.errors.MissingLibraryError as error:
        print(error)
    sys.argv = ["digits.py", "--strategy", "mirrored", "--devices", "2", "--epochs", "2"]
    try:
        runpy.run_path({str(ROOT / "examples" / "digits.py")!r}, run_name="__main__")
    finally:
        print("loaded:", sorted(set(sys.modules) & set({prefixes!r})))
    """
    )
    assert "jaxtribute.Model belongs to an add-on that is not installed" in text
    assert "mirrored" in text
    assert re.search(r"  9\d\.\d+%", text), text
    assert "loaded: []" in text
