"""Settings before TensorFlow or Keras starts: Keras's backend, and TensorFlow's variables of the environment.

A backend is followed in every spelling whose text shows it: `os.environ[...]`, `setdefault`, `putenv`, `update`,
dictionaries for another process. What cannot be read is told as well: a program is never believed to run on JAX.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.catalog.others import ENVIRONMENT
from jaxtribute._src.addons.compat.migrate.findings import Edit, Finding, Source, assigned, nodes, text_of
from jaxtribute._src.addons.compat.migrate.imports import first_line, is_keras

_BACKEND, _HERE = "KERAS_BACKEND", "jax"
_FILE = "keras.json"
"""Keras's file of settings, which names a backend too."""
_READS = ("get", "getenv")
_REMOVES = ("pop", "unsetenv", "delenv")
_ADVICE = f'Keras runs under strategies on its backend "{_HERE}" alone'


@dataclass(frozen=True, slots=True)
class _Setting:
    """A place where a variable of the environment gets a value.

    Attributes:
      name: the variable.
      node: the place.
      value: the expression of the value; None if the place has none that can be read.
    """

    name: str
    node: ast.expr
    value: ast.expr | None


def find(source: Source) -> Iterator[Finding]:
    """Places that choose Keras's backend, or set what nothing here reads; and imports of Keras before it is chosen."""
    values = assigned(source.tree)
    chosen: list[int] = []
    for setting in _settings(source.tree, values):
        if setting.name == _BACKEND:
            found = _backend(source, setting, values)
            # What is given to another process, or to `putenv`, is not seen by this one's Keras.
            if "environ" in source.line(setting.node.lineno) and (found is None or found.edits):
                chosen.append(setting.node.lineno)
            if found is not None:
                yield found
        elif setting.name in ENVIRONMENT:
            place = (setting.node.lineno, setting.node.col_offset + 1)
            yield Finding(*place, setting.name, Kind.DIFFERENT, ENVIRONMENT[setting.name])
    yield from _calls(source, values)
    yield from _too_early(source, chosen)


def _backend(source: Source, setting: _Setting, values: dict[str, ast.expr]) -> Finding | None:
    """Finding about a place that sets the backend; None if it sets JAX's."""
    place = (setting.node.lineno, setting.node.col_offset + 1, _BACKEND)
    text = None if setting.value is None else text_of(setting.value, values)
    if text == _HERE:
        return None
    if text is None or not isinstance(setting.value, ast.Constant):
        return Finding(*place, Kind.DIFFERENT, f'{_ADVICE}: let this be "{_HERE}"')
    edit = source.replace(setting.value, f'"{_HERE}"')
    return Finding(*place, Kind.RENAMED, f'{_ADVICE}: write "{_HERE}" instead of "{text}"', (edit,))


def _settings(tree: ast.Module, values: dict[str, ast.expr]) -> Iterator[_Setting]:
    """All settings of variables of the environment whose names can be read."""
    known: set[ast.expr] = set()
    for node in ast.walk(tree):
        for setting in _settings_of(node, values):
            if setting.node in known:
                continue
            known.add(setting.node)
            if setting.value is not None or setting.name == _BACKEND:
                yield setting
    # Wherever else the name stands, such as in `name = "KERAS_BACKEND"` or in a command, it may be set.
    for node in nodes(tree, ast.Constant):
        if not isinstance(node.value, (str, bytes)) or node in known:
            continue
        if any(name in str(node.value) for name in (_BACKEND, _FILE)) and not _is_text(tree, node):
            yield _Setting(_BACKEND, node, None)


def _settings_of(node: ast.AST, values: dict[str, ast.expr]) -> Iterator[_Setting]:
    """The settings that a node makes, and with no value the places that read the variable."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield from _setting(target.slice, node.value, values)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                yield from _setting(key, value, values)
    elif isinstance(node, ast.Call):
        if len(node.args) > 1 and not _calls_one_of(node, _READS + _REMOVES):
            yield from _setting(node.args[0], node.args[1], values)
        for given in node.keywords:
            if given.arg in (_BACKEND, *ENVIRONMENT):
                yield _Setting(given.arg or "", given.value, given.value)


def _setting(key: ast.expr, value: ast.expr, values: dict[str, ast.expr]) -> Iterator[_Setting]:
    name = text_of(key, values)
    if name in (_BACKEND, *ENVIRONMENT):
        yield _Setting(name or "", key, value)


def _is_text(tree: ast.Module, constant: ast.Constant) -> bool:
    """True if a constant only reads the variable, compares with its name, or is a comment in quotes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and node.value is constant:
            return True
        if isinstance(node, ast.Compare) and constant in (node.left, *node.comparators):
            return True
        if isinstance(node, ast.Subscript) and node.slice is constant and isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Call) and constant in node.args:
            # What is printed or raised is a message.
            return _calls_one_of(node, (*_READS, "print")) or _called(node).endswith(("Error", "Warning"))
    return False


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _calls_one_of(call: ast.Call, methods: tuple[str, ...]) -> bool:
    return _called(call) in methods


def _calls(source: Source, values: dict[str, ast.expr]) -> Iterator[Finding]:
    """Calls of Keras that choose another backend: `keras.config.set_backend("tensorflow")`."""
    for call in nodes(source.tree, ast.Call):
        if not _calls_one_of(call, ("set_backend",)) or not call.args:
            continue
        text = text_of(call.args[0], values)
        if text == _HERE:
            continue
        literal = isinstance(call.args[0], ast.Constant)
        edits = (source.replace(call.args[0], f'"{_HERE}"'),) if literal else ()
        kind = Kind.RENAMED if edits else Kind.DIFFERENT
        yield Finding(call.lineno, call.col_offset + 1, "set_backend", kind, f'{_ADVICE}: write "{_HERE}"', edits)


def _too_early(source: Source, chosen: list[int]) -> Iterator[Finding]:
    """The first import of Keras, if no line before it chooses the backend."""
    imports = [*nodes(source.tree, ast.Import), *nodes(source.tree, ast.ImportFrom)]
    first = min(filter(is_keras, imports), key=attrgetter("lineno"), default=None)
    if first is None or any(line < first.lineno for line in chosen):
        return
    place = source.place(first_line(source.tree), 0)
    text = f'import os\n\nos.environ["{_BACKEND}"] = "{_HERE}"\n\n'
    own = [one for one in source.tree.body if isinstance(one, ast.Import) and one.lineno < first.lineno]
    for one in own:
        # Behind an `import os` of the program's own, if that stands before Keras.
        if any(alias.name == "os" and alias.asname is None for alias in one.names):
            place = source.place(one.end_lineno or 0, 0) + len(source.line(one.end_lineno or 0).encode())
            text = f'os.environ["{_BACKEND}"] = "{_HERE}"\n'
    # A setting further down comes too late, and is left to the reader with the import.
    edits = () if chosen else (Edit(place, place, text),)
    advice = f'{_ADVICE}, and it takes TensorFlow if nothing is said: write os.environ["{_BACKEND}"] = "{_HERE}" before'
    where = (first.lineno, first.col_offset + 1, "import of keras")
    yield Finding(*where, Kind.RENAMED if edits else Kind.DIFFERENT, advice, edits)
