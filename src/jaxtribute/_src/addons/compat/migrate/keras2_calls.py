"""Calls of Keras 2 that have one counterpart in Keras 3, and are rewritten: arguments of `compile`, sums."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind, in_keras
from jaxtribute._src.addons.compat.migrate.findings import Edit, Finding, Source, nodes
from jaxtribute._src.addons.compat.migrate.keras2_steps import methods
from jaxtribute._src.addons.compat.migrate.naming import Names
from jaxtribute._src.addons.compat.migrate.older import is_optimizer

_BACKEND = "tf.keras.backend."
_SAME = frozenset(
    "abs all any cos dot equal exp greater greater_equal less less_equal log max maximum mean min "
    "minimum not_equal ones_like prod reshape round sigmoid sign sin sqrt square squeeze std sum tanh transpose var "
    "zeros_like".split()
)
"""Functions of Keras 2's `backend` that `keras.ops` has with the same arguments in the same places."""
_KEYWORDS = frozenset({"axis", "keepdims"})
_COMPILE = ("metrics", "loss_weights", "weighted_metrics", "run_eagerly")
"""Arguments of Keras 2's `compile` behind the optimizer and the loss, in their places."""


def find(source: Source, names: Names) -> Iterator[Finding]:
    """Calls that can be rewritten."""
    yield from _backend(source, names)
    yield from _rates(source, names)
    yield from _places(source, names)


def _backend(source: Source, names: Names) -> Iterator[Finding]:
    root = next((node.id for node in nodes(source.tree, ast.Name) if names.of(node) == "tf"), None)
    if root is None:
        return
    for call in nodes(source.tree, ast.Call):
        name = names.called_by(call) or ""
        if not name.startswith(_BACKEND) or names.plain(call.func):
            continue
        last = name.removeprefix(_BACKEND)
        plain = not call.keywords and len(call.args) == 1
        if last in _SAME and all(given.arg in _KEYWORDS for given in call.keywords):
            text = f"{root}.keras.ops.{last}"
            edits = (source.replace(call.func, text),)
        elif last == "flatten" and plain:
            text = f"{root}.keras.ops.ravel"
            edits = (source.replace(call.func, text),)
        else:
            continue
        yield Finding(call.lineno, call.col_offset + 1, name, Kind.RENAMED, f"it needs TensorFlow: write {text}", edits)


def _rates(source: Source, names: Names) -> Iterator[Finding]:
    """`Adam(lr=0.1)`, which is `Adam(learning_rate=0.1)`, and `optimizer.lr`: assigned, it would have no effect."""
    for call in nodes(source.tree, ast.Call):
        name = in_keras(names.called_by(call) or "")
        for given in call.keywords if name.startswith("tf.keras.optimizers.") else ():
            if given.arg == "lr":
                start = source.place(given.lineno, given.col_offset)
                edit = Edit(start, start + len("lr"), "learning_rate")
                place = (given.lineno, given.col_offset + 1, f"{name}(lr=)")
                yield Finding(*place, Kind.RENAMED, "write learning_rate=", (edit,))
    for node in nodes(source.tree, ast.Attribute):
        if node.attr == "lr" and names.of(node) is None and is_optimizer(node.value, names):
            end = source.place(node.end_lineno or 0, node.end_col_offset or 0)
            edit = Edit(end - len("lr"), end, "learning_rate")
            place = (node.end_lineno or 0, (node.end_col_offset or 0) - 1, ".lr of an optimizer")
            yield Finding(*place, Kind.RENAMED, "write learning_rate", (edit,))


def _places(source: Source, names: Names) -> Iterator[Finding]:
    """`model.compile(optimizer, loss, metrics)`: in Keras 3 the third argument is another one."""
    imported = _imported(source.tree)
    own = "compile" in methods(source.tree)
    inherited = _inherited(source.tree, names)
    for call in nodes(source.tree, ast.Call):
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr != "compile" or names.of(func) is not None:
            continue
        if len(call.args) < 3 or any(isinstance(value, ast.Starred) for value in call.args):
            continue
        edits: list[Edit] = []
        advice = "arguments behind the loss have other places in Keras 3: write metrics="
        # A class, a module or an object of another file may have a `compile` of its own, with other arguments.
        if own or _root(func.value) in imported or len(call.args) > len(_COMPILE) + 2:
            if call not in inherited and not names.made_by(func.value).startswith("tf.keras."):
                continue
            advice += ", and the names of those that follow"
        else:
            for given, name in zip(call.args[2:], _COMPILE, strict=False):
                start, _ = source.span(given)
                edits.append(Edit(start, start, f"{name}="))
        place = (call.lineno, call.col_offset + 1, ".compile(optimizer, loss, ...)")
        yield Finding(*place, Kind.RENAMED, advice, tuple(edits))


def _inherited(tree: ast.Module, names: Names) -> set[ast.Call]:
    """The calls `super().compile(...)` in classes whose base is one of Keras's."""
    found: set[ast.Call] = set()
    for owner in nodes(tree, ast.ClassDef):
        if not any((names.of(base) or "").startswith("tf.keras.") for base in owner.bases):
            continue
        for call in nodes(owner, ast.Call):
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Name) and receiver.func.id == "super":
                found.add(call)
    return found


def _imported(tree: ast.Module) -> set[str]:
    """The names that a program's imports bind."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return bound


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes begins with; empty if it begins with something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
