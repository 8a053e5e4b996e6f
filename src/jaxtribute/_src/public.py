"""The border: names of private modules under the names by which users know them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from inspect import isclass, isfunction
from types import ModuleType
from typing import Any

from jaxtribute.errors import MissingLibraryError

_PRIVATE = "jaxtribute._src"


def publish(home: str, names: Iterable[str] | None = None) -> None:
    """Gives classes and functions their public address, which tracebacks, pickles and documentation then show.

    Args:
      home: the public module, which is being imported.
      names: the names in it; all in its `__all__` by default.
    """
    module = sys.modules[home]
    for name in module.__all__ if names is None else names:
        _readdress(vars(module)[name], home)


def lazy_names(
    home: str, names: Mapping[str, str], modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Gives a public module, some of whose names load much or are rarely used, `__getattr__` and `__dir__`.

    They are not assigned in the module itself, so that a checker knows what is not there.

    Args:
      home: the public module.
      names: each name, and the private module that defines it, without `jaxtribute._src.`; `module:name` if its name is
        another one there, `module:` for the module itself.
      modules: public modules of `jaxtribute` that are attributes of this one.
    """
    module = sys.modules[home]
    public = frozenset(modules)

    def find(name: str) -> Any:
        if name in public:
            return _load(home, name, f"jaxtribute.{name}")
        if name not in names:
            raise AttributeError(f"module {home!r} has no attribute {name!r}", name=name)
        place, colon, other = names[name].partition(":")
        found: Any = _load(home, name, f"{_PRIVATE}.{place}")
        if other or not colon:
            found = getattr(found, other or name)
        if not colon:  # pickles look for the name that it was defined with
            _readdress(found, home)
        # The next look-up finds it in the module, and does not come here.
        setattr(module, name, found)
        return found

    def listed() -> list[str]:
        return sorted({*vars(module), *names, *public})

    vars(module).update(__getattr__=find, __dir__=listed)
    return find, listed


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
