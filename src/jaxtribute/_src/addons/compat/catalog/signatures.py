"""Arguments that Keras's classes and functions take, read from the files of the Keras that is installed."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from jaxtribute._src.addons.compat.catalog.keras import file_of, home_of

_LAST = ("Layer", "BaseOptimizer", "Optimizer", "KerasOptimizer", "Callback", "Loss", "Metric", "LearningRateSchedule")
"""Classes that check the arguments which those below them do not know."""


def takes(name: str, argument: str) -> bool:
    """True if a class or function of Keras takes an argument by keyword, or if its text does not tell.

    Args:
      name: its full name, such as `tf.keras.layers.Dense`.
      argument: the argument.
    """
    home = home_of(name)
    known = None if home is None else _arguments(home, name.rpartition(".")[2])
    return known is None or argument in known


@cache
def _arguments(file: Path, name: str) -> frozenset[str] | None:
    """Names of the arguments of a class or function in a file; None if others than those may be taken."""
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return None if node.args.kwarg else _of_function(node)
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _of_class(tree, file, node)
        # Another module defines it, and this one hands it on.
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name and (node.module or "").startswith("keras."):
                    return _arguments(file_of(node.module or ""), alias.name)
    return None


def _of_class(tree: ast.Module, file: Path, node: ast.ClassDef) -> frozenset[str] | None:
    for method in node.body:
        # A class that makes its objects by itself may take more.
        if isinstance(method, ast.FunctionDef) and method.name == "__new__" and node.name not in _LAST:
            return None
    own: frozenset[str] = frozenset()
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            own = _of_function(method)
            if not method.args.kwarg or node.name in _LAST:
                return own
    known: list[frozenset[str]] = []
    for base in node.bases:
        above = _of_base(tree, file, base)
        if above is not None:
            known.append(above)
    # Keras chooses some bases by the backend, in lines that are not followed: they take no arguments of their own.
    return own.union(*known) if known else None


def _of_base(tree: ast.Module, file: Path, base: ast.expr) -> frozenset[str] | None:
    if isinstance(base, ast.Name):
        return _arguments(file, base.id)
    if not isinstance(base, ast.Attribute) or not isinstance(base.value, ast.Name):
        return None
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == base.value.id:
                return _arguments(file_of(f"{node.module}.{alias.name}"), base.attr)
    return None


def _of_function(function: ast.FunctionDef) -> frozenset[str]:
    given = function.args
    names = {argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    # Those that are looked for among further ones: `kwargs.pop("input_shape", None)`.
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return frozenset(names)
