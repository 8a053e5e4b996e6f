"""Files of Keras models, whose names end otherwise in Keras 3."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.compat.catalog.lookup import Kind
from jaxtribute._src.compat.migrate.findings import Edit, Finding, Source, keyword, nodes
from jaxtribute._src.compat.migrate.naming import Names

_CHECKPOINT = "tf.keras.callbacks.ModelCheckpoint"
_MODEL, _WEIGHTS = ".keras", ".weights.h5"
_JOINS = ("join", "joinpath")


def find(source: Source, names: Names) -> Iterator[Finding]:
    """Calls of `ModelCheckpoint` with a file that Keras 3 refuses, as far as its name can be read."""
    values = _assigned(source.tree)
    for node in nodes(source.tree, ast.Call):
        if names.of(node.func) != _CHECKPOINT:
            continue
        path = keyword(node, "filepath") or (node.args[0] if node.args else None)
        suffix = _suffix(node)
        if path is None or suffix is None:
            continue
        # Followed eight names deep: two names that are assigned from each other would go round for ever.
        end = _end(path, values, 8)
        if end is None or end.endswith(suffix):
            continue
        start, stop = source.span(path)
        # Only behind these does a `+` surely add to the whole path: other expressions are left to the reader.
        text = (
            f'{source.of(path)} + "{suffix}"'
            if isinstance(path, (ast.Name, ast.Attribute, ast.Call, ast.Constant))
            else ""
        )
        edits = (Edit(start, stop, text),) if text else ()
        advice = f"Keras 3 wants a file that ends in {suffix}" + (f": write filepath={text}" if text else "")
        yield Finding(path.lineno, path.col_offset + 1, f"file of {_CHECKPOINT}", Kind.RENAMED, advice, edits)


def _suffix(call: ast.Call) -> str | None:
    """The end that the file of a call must have; None if that cannot be read."""
    given = keyword(call, "save_weights_only")
    if given is None:
        return _MODEL
    return (_WEIGHTS if given.value else _MODEL) if isinstance(given, ast.Constant) else None


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """The value of each name that is assigned once."""
    found: dict[str, ast.expr] = {}
    several: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            several |= {name} & found.keys()
            found[name] = node.value
        # An argument, a loop or `+=` gives the name a value that the text does not show.
        elif isinstance(node, (ast.arg, ast.For, ast.AugAssign)):
            target = node.arg if isinstance(node, ast.arg) else getattr(node.target, "id", "")
            several.add(target)
    return {name: value for name, value in found.items() if name not in several}


def _end(node: ast.expr, values: dict[str, ast.expr], depth: int) -> str | None:
    """The last part of a path; None if it cannot be read."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name) and depth:
        return _end(values[node.id], values, depth - 1) if node.id in values else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _JOINS and node.args:
        return _end(node.args[-1], values, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _end(node.right, values, depth)
    if isinstance(node, ast.JoinedStr) and node.values:
        return _end(node.values[-1], values, depth)
    return None
