"""Finds the code that AutoGraph would rewrite: control flow over arrays and datasets in compiled functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute.compat.catalog.entries import Kind
from jaxtribute.compat.migrate.findings import Finding
from jaxtribute.compat.migrate.naming import Names

_KNOWN = "the condition must be known while the function is traced: use "
_ADVICE = {
    "for tf.range": "the loop runs while the function is traced, and each turn is compiled: keep it short, use "
    "tf.while_loop, or loop outside",
    "for dataset": "a loop that is traced cannot read elements: loop outside, or pass iter(dataset) as an argument and "
    "call next",
    "if": _KNOWN + "tf.cond or tf.where",
    "while": _KNOWN + "tf.while_loop",
    "next": "an element can only be read from an iterator that is an argument of the function: pass it",
}
_CONDITIONS = ("tf.reduce_", "tf.math.", "tf.equal", "tf.not_equal", "tf.less", "tf.greater", "tf.logical_")


def find(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Loops, branches and reads in functions under `@tf.function` that work otherwise here, as far as one can see."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and _is_compiled(function, names):
            arguments = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
            for node in ast.walk(function):
                what = _what(node, names, arguments)
                if what and isinstance(node, (ast.stmt, ast.expr)):
                    name = f"{what} in tf.function"
                    yield Finding(node.lineno, node.col_offset + 1, name, Kind.DIFFERENT, _ADVICE[what])


def _is_compiled(function: ast.FunctionDef, names: Names) -> bool:
    decorators = [part.func if isinstance(part, ast.Call) else part for part in function.decorator_list]
    return any(names.of(part) == "tf.function" for part in decorators)


def _what(node: ast.AST, names: Names, arguments: set[str]) -> str:
    """Name of the advised construct that a node is; empty for none."""
    if isinstance(node, ast.For):
        over = node.iter
        if isinstance(over, ast.Call) and names.of(over.func) == "tf.range":
            return "for tf.range"
        return "for dataset" if _is_dataset(over, names) else ""
    if isinstance(node, (ast.If, ast.While)):
        called = [names.of(part.func) or "" for part in ast.walk(node.test) if isinstance(part, ast.Call)]
        return type(node).__name__.lower() if any(name.startswith(_CONDITIONS) for name in called) else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next" and node.args:
        source = node.args[0]
        return "next" if isinstance(source, ast.Name) and source.id not in arguments else ""
    return ""


def _is_dataset(node: ast.expr, names: Names) -> bool:
    if (names.of(node) or "").endswith("Dataset"):
        return True
    return isinstance(node, ast.Name) and node.id.endswith(("dataset", "iterator"))
