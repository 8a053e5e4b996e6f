"""Finding the uses of Keras 2 that Keras 3 refuses, ignores or reads otherwise: methods, attributes, arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog import keras2
from jaxtribute._src.addons.compat.catalog.lookup import Kind, in_keras
from jaxtribute._src.addons.compat.catalog.signatures import takes
from jaxtribute._src.addons.compat.migrate.findings import Finding, keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

_KERAS = "tf.keras."


def find(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Uses of Keras 2, as far as one can see what an object is."""
    for call in nodes(tree, ast.Call):
        yield from _arguments(call, names)
        yield from _methods(call, names)
    for node in nodes(tree, ast.Attribute):
        # A name of TensorFlow's own, such as `tf.keras.optimizers.weights`, is looked up with all others.
        if names.of(node) is not None or not isinstance(node.ctx, ast.Load):
            continue
        if node.attr in keras2.ATTRIBUTES:
            yield _finding(node, f".{node.attr}", keras2.ATTRIBUTES[node.attr])
        elif node.attr in keras2.OPTIMIZERS and is_optimizer(node.value, names):
            yield _finding(node, f".{node.attr} of an optimizer", keras2.OPTIMIZERS[node.attr])


def _finding(node: ast.expr, name: str, advice: str) -> Finding:
    return Finding(node.end_lineno or 0, max((node.end_col_offset or 0) - len(name), 0) + 1, name, Kind.ABSENT, advice)


def _methods(call: ast.Call, names: Names) -> Iterator[Finding]:
    method = call.func
    if not isinstance(method, ast.Attribute) or names.of(method) is not None:
        return
    if method.attr in keras2.METHODS:
        yield _finding(method, f".{method.attr}", keras2.METHODS[method.attr])
    for given in call.keywords:
        advice = keras2.ARGUMENTS.get(method.attr, {}).get(given.arg or "")
        if advice:
            yield _argument(given, f"{method.attr}({given.arg}=)", advice)
    first = call.args[0] if call.args else None
    if method.attr == "add_weight" and isinstance(first, ast.Constant) and isinstance(first.value, str):
        yield _finding(first, "add_weight(name)", "the shape comes first in Keras 3: write name=")


def _arguments(call: ast.Call, names: Names) -> Iterator[Finding]:
    """Arguments of Keras's classes and functions that Keras 3 refuses or ignores."""
    name = in_keras(names.of(call.func) or "")
    if not name.startswith(_KERAS):
        return
    for given in call.keywords:
        if given.arg is None:
            continue
        advice = _advice(name, given.arg)
        if not advice and not takes(name, given.arg):
            advice = "Keras 3 has no such argument: leave it out"
        if advice:
            yield _argument(given, f"{name}({given.arg}=)", advice)
    if name.rpartition(".")[2] in keras2.DATASETS:
        form = keyword(call, "format")
        if not isinstance(form, ast.Constant) or form.value != "grain":
            advice = (
                "its datasets are TensorFlow's: pass format=\"grain\" for one of Grain's, which has map and batch "
                "but no take, cache or prefetch; where the program needs those, write "
                "tf.data.Dataset.from_tensor_slices(arrays).batch(n)"
            )
            yield _finding(call.func, name, advice)


def _advice(name: str, argument: str) -> str:
    for start, arguments in keras2.IGNORED.items():
        module = start.endswith(".")
        if argument not in arguments or not (name.startswith(start) if module else name == start):
            continue
        # Some of a module's classes have an argument of that name: `Embedding(weights=...)`.
        if not module or argument not in keras2.SOME_TAKE or not takes(name, argument):
            return arguments[argument]
    return ""


def _argument(given: ast.keyword, name: str, advice: str) -> Finding:
    return Finding(given.lineno, given.col_offset + 1, name, Kind.ABSENT, advice)


def is_optimizer(node: ast.expr, names: Names) -> bool:
    """True if an expression is an optimizer by what it was assigned, or by its name."""
    if names.made_by(node).startswith(("tf.keras.optimizers.", "tf.compat.v1.train.")):
        return True
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return last in ("opt", "optim") or last.endswith("optimizer")
