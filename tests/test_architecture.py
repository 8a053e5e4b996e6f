"""The border and the rooms: what is public holds names only, and imports point down."""

import ast
from collections.abc import Generator
from pathlib import Path

import file_index
import jaxtribute as jd

ROOT = Path(jd.__file__).parent
PRIVATE = "jaxtribute._src"
SIDES = ("core", "addons")
FLOORS = [
    {"jaxtribute.errors"},
    set[str](),  # modules directly in `_src`, which serve all rooms
    {"jaxprs"},
    {"values"},
    {"collectives"},
    {"execution"},
    {"input", "cluster", "losses"},
    {"strategies", "config", "last_call", "main_process", "proxies", "roll_call", "stragglers"},
    {"optimizer"},
    {"checkpoint"},
    # The fence: what stands above is add-ons, of which the core imports none.
    {"messaging", "preemption", "resolvers", "sources", "tables", "tpu", "tracking", "training", "wires"},
    {"elastic", "launcher", "rpc"},
    {"parameter_servers"},
    {"integrations", "models"},
    {"keras"},
    {"compat"},
    {"testing"},
    {"tools"},
    {"bench", "doctor", "layouts", "live", "profiling", "verify", "visualize"},
    {"planning"},
    {"memory"},
    {"compiling"},
    {"fitting"},
    {"cli"},
]
"""From the bottom up. A room imports those below its own."""
UPWARD = {
    ("context", "execution"): "types: a context holds an executor and a replica",
    ("context", "strategies"): "types: a context holds a strategy",
    ("values", "execution"): "types: reads and writes are asked of an executor",
    ("values", "strategies"): "types: the strategy of a variable",
    ("execution", "strategies"): "types: the strategy whose replicas run",
    ("drawing", "input"): "types: what is drawn",
    ("drawing", "strategies"): "types: what is drawn",
    ("drawing", "values"): "types: what is drawn",
    ("points", "checkpoint"): "types: what add-ons register",
    ("points", "cluster"): "types: what add-ons register",
    ("points", "collectives"): "types: what add-ons register",
    ("points", "execution"): "types: what add-ons register",
    ("points", "input"): "types: what add-ons register",
    ("points", "strategies"): "types: what add-ons register",
}
"""Imports that point up, for type checkers alone or within a function, with their reasons."""


def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> Generator[str]:
    """The modules of the library that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "jaxtribute":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "jaxtribute")


def room(module: str) -> str:
    """The room of a module; its own name where it lies in none."""
    if not module.startswith(PRIVATE):
        return module
    parts = module.removeprefix(PRIVATE + ".").split(".")
    return parts[1] if parts[0] in SIDES and len(parts) > 1 else parts[0]


def floor(place: str) -> int:
    return next((number for number, rooms in enumerate(FLOORS) if place in rooms), 1)


def private() -> Generator[tuple[str, str]]:
    for module, path in MODULES.items():
        if module.startswith(PRIVATE + "."):
            for imported in imports(path):
                yield module, imported


def lazily_or_for_types(module: str) -> set[str]:
    """The modules that a file imports in functions, or for type checkers, alone."""
    now: set[str] = set()
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            now.update({f"{node.module}.{alias.name}" for alias in node.names} | {node.module})
    return set(imports(MODULES[module])) - now


def test_what_points_up_is_not_imported_when_a_module_loads() -> None:
    for module, other in private():
        if (room(module), room(other)) in UPWARD:
            assert other in lazily_or_for_types(module), f"{module} imports {other}"


def test_imports_point_down() -> None:
    found: dict[tuple[str, str], str] = {}
    for module, other in private():
        here, there = room(module), room(other)
        if here != there and floor(there) >= floor(here) and (floor(here) != 1 or floor(there) != 1):
            found[here, there] = f"{module} imports {other}"
    assert {pair: text for pair, text in found.items() if pair not in UPWARD} == {}
    assert {pair for pair in UPWARD if pair not in found} == set(), "these point up no longer"


def test_each_folder_has_its_place() -> None:
    folders = {path.parent.name for side in SIDES for path in (ROOT / "_src" / side).glob("*/__init__.py")}
    assert folders - set[str]().union(*FLOORS) == set(), "without a place, what they import is not looked at"


def test_the_page_of_files_is_up_to_date() -> None:
    assert file_index.PAGE.read_text(encoding="utf-8") == file_index.page(), "run python tests/support/file_index.py"
