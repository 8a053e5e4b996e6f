"""The border: names of private modules under the names by which users know them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from inspect import isclass, isfunction
from types import ModuleType
from typing import Any

from jaxtribute.errors import MissingLibraryError

_PRIVATE = "jaxtribute._src"
_FOR_CHECKERS = re.compile(r"^if _TYPE_CHECKING:\n((?:[ ].*\n|\n)+)", re.M)
_IMPORT = re.compile(r"^ +from (\S+) import (.+)$", re.M)


def publish(home: str, names: Iterable[str] | None = None) -> None:
    """Gives classes and functions their public address, which tracebacks, pickles and documentation then show.

    Args:
      home: the public module, which is being imported.
      names: the names in it; by default those of its `__all__` that are loaded.
    """
    module = sys.modules[home]
    for name in module.__all__ if names is None else names:
        _readdress(vars(module).get(name), home)


def lazy_names(home: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Gives a public module, some of whose names load much or are rarely used, `__getattr__` and `__dir__`.

    The names are those that the module imports for type checkers: its lines between `if _TYPE_CHECKING:` and the next
    one that is not indented are read from its source, so that each name is listed once. They are not assigned in the
    module itself, so that a checker knows what is not there.

    Args:
      home: the public module, which is being imported.

    Raises:
      ImportError: the library is installed without its sources.
    """
    module = sys.modules[home]
    names = _imported_for_checkers(home)

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {home!r} has no attribute {name!r}", name=name)
        place = names[name]
        value: Any = None if place in ("jaxtribute", home) else getattr(_load(home, name, place), name, None)
        if value is None:
            value = _load(home, name, f"{place}.{name}")
        _readdress(value, home)
        # The next look-up finds it in the module, and does not come here.
        setattr(module, name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(module), *names})

    vars(module).update(__getattr__=find, __dir__=listed)
    return find, listed


def _imported_for_checkers(home: str) -> dict[str, str]:
    """The names that a module imports for type checkers, and where from."""
    loader: Any = sys.modules[home].__loader__
    source = loader.get_source(home)
    if source is None:
        raise ImportError(
            f"the source of {home} is not there, which says where its names are defined. HINT: install jaxtribute with "
            "its .py files."
        )
    block = _FOR_CHECKERS.search(source)
    assert block is not None, f"{home} imports nothing for type checkers"
    return {
        name.partition(" as ")[0]: place for place, names in _IMPORT.findall(block[1]) for name in names.split(", ")
    }


def _load(home: str, name: str, module: str) -> ModuleType:
    """Imports the module that has a name; one of an add-on that is not installed is named by a sentence."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(_PRIVATE):
            raise
        raise MissingLibraryError(
            f"{home}.{name} belongs to an add-on that is not installed: there is no {error.name}. HINT: install "
            "jaxtribute whole."
        ) from error


def _readdress(value: object, home: str) -> None:
    """Sets where `value` is found; of several public modules with one name, the one with the shortest name is told."""
    if not (isclass(value) or isfunction(value)):
        return
    now = value.__module__
    # The shortest name is the one in the guides: `jaxtribute.X` rather than that of a submodule.
    if now.startswith(_PRIVATE) or (now.startswith("jaxtribute") and len(home) < len(now)):
        value.__module__ = home
        # `help` says of each method where it is from, unless it is from the class's own module.
        for member in vars(value).values() if isclass(value) else ():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if isfunction(function) and function.__module__ == now:
                function.__module__ = home
