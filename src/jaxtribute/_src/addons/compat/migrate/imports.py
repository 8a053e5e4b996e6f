"""The import lines of TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from jaxtribute._src.addons.compat.catalog.keras import keras_problem
from jaxtribute._src.addons.compat.catalog.lookup import Kind, exists, in_keras, why_absent
from jaxtribute._src.addons.compat.catalog.others import ALIASES, LIBRARIES, OTHER_PACKAGES, OWN
from jaxtribute._src.addons.compat.migrate.findings import Finding, Source
from jaxtribute._src.addons.compat.migrate.naming import root_of

_HERE = "jaxtribute.compat.tf"


def find(source: Source) -> Iterator[Finding]:
    """The imports of TensorFlow, with the lines that take their place, and of packages that need TensorFlow."""
    for node in ast.walk(source.tree):
        yield from _other_packages(node)
        if isinstance(node, ast.Import):
            yield from _imports(source, node)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from _imports_from(source, node, node.module)


def first_line(tree: ast.Module) -> int:
    """The line of the first import that is not from the future, or the first line of all."""
    for node in tree.body:
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module != "__future__"):
            return node.lineno
    return 1


def is_keras(node: ast.Import | ast.ImportFrom) -> bool:
    """True if a line imports Keras itself, not `tf.keras`."""
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == "keras" for alias in node.names)
    return not node.level and (node.module or "").partition(".")[0] == "keras"


def _other_packages(node: ast.AST) -> Iterator[Finding]:
    modules: list[str] = []
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        modules = [node.module]
    for module in modules:
        advice = OTHER_PACKAGES.get(module.partition(".")[0])
        # TensorFlow Probability has a part for JAX, which needs no TensorFlow.
        if advice and "substrates.jax" not in module and isinstance(node, ast.stmt):
            yield Finding(node.lineno, node.col_offset + 1, module, Kind.ABSENT, advice)


def _imports(source: Source, node: ast.Import) -> Iterator[Finding]:
    # This library's own modules have a root as well, and nothing is to be changed in their imports, nor in Keras's.
    theirs = [alias for alias in node.names if _of_others(alias)]
    for alias in theirs:
        root = root_of(alias.name)
        if root is not None and not alias.name.startswith("jaxtribute"):
            yield from _of_keras(node, alias.name, root)
    ours = {alias: root_of(alias.name) or "" for alias in node.names if alias not in theirs}
    # What takes the place of the line has a line for each of them; one that is not mechanical leaves it whole.
    lines = [f"import {_listed(theirs)}"] if theirs else []
    lines += [f"import {_here(root)} as {alias.asname or alias.name}" for alias, root in ours.items()]
    whole = all(_is_module(root) and (alias.asname or "." not in alias.name) for alias, root in ours.items())
    edits = (source.replace(node, _separate(source, node, lines)),) if whole else ()
    for alias, root in ours.items():
        place = (node.lineno, node.col_offset + 1, alias.name)
        # `import a.b` takes modules only; everything else needs `from a import b`.
        if not _is_module(root):
            yield Finding(*place, Kind.ABSENT, _reason(root))
        # `import tensorflow.x` binds the name `tensorflow`; the same line with this library's module would not.
        elif alias.asname is None and "." in alias.name:
            yield Finding(*place, Kind.RENAMED, f"give it a name: import {_here(root)} as ...")
        elif not whole:
            yield Finding(*place, Kind.RENAMED, f"put it on a line of its own: import {_here(root)} as ...")
        else:
            yield Finding(*place, Kind.RENAMED, f"write {'; '.join(lines)}", edits)


def _of_others(alias: ast.alias) -> bool:
    return root_of(alias.name) is None or alias.name.partition(".")[0] in ("keras", "jaxtribute")


def _separate(source: Source, node: ast.Import | ast.ImportFrom, lines: Iterable[str]) -> str:
    """The text of statements that take the place of an import: lines, or behind others on one line parts of it."""
    before = source.before(node)
    return ("; " if before.strip() else f"\n{before}").join(lines)


def _imports_from(source: Source, node: ast.ImportFrom, module: str) -> Iterator[Finding]:
    root = root_of(module)
    if root is None or module.startswith("jaxtribute"):
        return
    if is_keras(node):
        for alias in node.names:
            yield from _of_keras(node, f"{module}.{alias.name}", f"{root}.{alias.name}")
        return
    # A line with one name that is not here is left to the reader, as two lines would take its place.
    missing = [alias.name for alias in node.names if alias.name == "*" or not _holds(root, alias.name)]
    if _library(root) is not None and root not in LIBRARIES:
        yield from _below_keras(source, node, module, root)
        return
    for alias in node.names:
        place = (node.lineno, node.col_offset + 1, f"{module}.{alias.name}")
        if alias.name in missing:
            yield Finding(*place, Kind.ABSENT, _reason(f"{root}.{alias.name}"))
        elif missing:
            yield Finding(*place, Kind.RENAMED, f"write from {_here(root)} import {alias.name}")
        else:
            names = ", ".join(part.name + (f" as {part.asname}" if part.asname else "") for part in node.names)
            text = f"from {_here(root)} import {names}"
            yield Finding(*place, Kind.RENAMED, f"write {text}", (source.replace(node, text),))


def _below_keras(source: Source, node: ast.ImportFrom, module: str, root: str) -> Iterator[Finding]:
    """Names out of modules of `tf.keras`: from Keras itself, or this library where Keras needs TensorFlow for them."""
    place = (node.lineno, node.col_offset + 1)
    names = {f"{in_keras(root)}.{alias.name}": alias for alias in node.names}
    problems = [(name, "name what is used" if "*" in name else keras_problem(name)) for name in names]
    if any(problem for _, problem in problems):
        for name, problem in problems:
            shown = f"{module}.{name.rpartition('.')[2]}"
            advice = problem or f"write {_line(root, [names[name]])}"
            yield Finding(*place, shown, Kind.ABSENT if problem else Kind.RENAMED, advice)
        return
    own = {name: alias for name, alias in names.items() if name in OWN}
    theirs = {name: alias for name, alias in names.items() if name not in OWN}
    lines = [_line(root, theirs.values())] if theirs else []
    lines += [f"from jaxtribute.integrations.keras import {_listed(own.values())}"] if own else []
    text = _separate(source, node, lines)
    yield Finding(*place, module, Kind.RENAMED, f"write {text}", (source.replace(node, text),))


def _line(root: str, names: Iterable[ast.alias]) -> str:
    return f"from {in_keras(root).removeprefix('tf.')} import {_listed(names)}"


def _listed(names: Iterable[ast.alias]) -> str:
    return ", ".join(name.name + (f" as {name.asname}" if name.asname else "") for name in names)


def _of_keras(node: ast.Import | ast.ImportFrom, shown: str, name: str) -> Iterator[Finding]:
    """Finding about a name of Keras itself, whose lines stay as they are where Keras 3 has the name."""
    problem = "" if shown.endswith("*") else keras_problem(name, plain=True)
    if shown.startswith("keras.src"):
        problem = "a module inside Keras: use the public name"
    if problem:
        yield Finding(node.lineno, node.col_offset + 1, shown, Kind.ABSENT, problem)


def _here(root: str) -> str:
    return _HERE + root.removeprefix("tf")


def _is_module(root: str) -> bool:
    return root in LIBRARIES or (exists(root) if _library(root) is None else False)


def _holds(root: str, name: str) -> bool:
    """True if a module that can be imported here holds a name."""
    if root in LIBRARIES:
        return not keras_problem(f"{root}.{name}")
    return f"{root}.{name}" in (*LIBRARIES, *ALIASES) or (_library(root) is None and exists(f"{root}.{name}"))


def _library(name: str) -> str | None:
    """The library that a name is in."""
    full = in_keras(name)
    return next((library for library in LIBRARIES if f"{full}.".startswith(f"{library}.")), None)


def _reason(name: str) -> str:
    library = _library(name)
    name = in_keras(name)
    if library is not None and keras_problem(name):
        return keras_problem(name)
    if library is not None:
        part = name.removeprefix(f"{library}.").partition(".")[0]
        return f"write from {_here(library)} import {part}, and {name.removeprefix(f'{library}.')} where it is used"
    if name.startswith("tf.python"):
        return "a module inside TensorFlow: use the public name"
    return why_absent(name) or "it has no counterpart in jaxtribute.compat.tf"
