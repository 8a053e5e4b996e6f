"""What AutoGraph would rewrite: Python's control flow over arrays in compiled functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from jaxtribute.compat.catalog.entries import Kind
from jaxtribute.compat.migrate.findings import Finding
from jaxtribute.compat.migrate.naming import Names

_UNROLLED = "the loop runs while the function is traced, and each turn is compiled: keep it short, use "
_ADVICE = {
    ast.For: _UNROLLED + "tf.while_loop, or loop outside",
    ast.If: "the condition must be known while the function is traced: use tf.cond or tf.where",
    ast.While: "the condition must be known while the function is traced: use tf.while_loop",
}


def find(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Loops and branches in functions under `@tf.function` that depend on arrays, as far as one can see."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or not _is_compiled(function, names):
            continue
        datasets = {argument.arg for argument in function.args.args if argument.arg.endswith(("dataset", "iterator"))}
        for node in ast.walk(function):
            if isinstance(node, ast.For) and _is_over_arrays(node.iter, names, datasets):
                yield _finding(node, "for")
            elif isinstance(node, (ast.If, ast.While)) and _computes(node.test, names):
                yield _finding(node, type(node).__name__.lower())
            elif _takes_next(node, datasets):
                yield Finding(
                    node.lineno,
                    node.col_offset + 1,
                    "next",
                    Kind.DIFFERENT,
                    "an element that is read while the function is traced is a constant of the program: pass elements "
                    "as arguments",
                )


def _finding(node: ast.For | ast.If | ast.While, name: str) -> Finding:
    return Finding(node.lineno, node.col_offset + 1, f"{name} in tf.function", Kind.DIFFERENT, _ADVICE[type(node)])


def _is_compiled(function: ast.FunctionDef, names: Names) -> bool:
    decorators = [part.func if isinstance(part, ast.Call) else part for part in function.decorator_list]
    return any(names.of(part) == "tf.function" for part in decorators)


def _is_over_arrays(node: ast.expr, names: Names, datasets: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return names.of(node.func) == "tf.range"
    name = names.of(node) or ""
    return name.endswith(("Dataset", "DistributedIterator")) or (isinstance(node, ast.Name) and node.id in datasets)


def _computes(test: ast.expr, names: Names) -> bool:
    called = [names.of(node.func) or "" for node in ast.walk(test) if isinstance(node, ast.Call)]
    return any(name.startswith(("tf.reduce_", "tf.math.", "tf.equal", "tf.less", "tf.greater")) for name in called)


def _takes_next(node: ast.AST, datasets: set[str]) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "next"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Name)
        and node.args[0].id in datasets
    )
