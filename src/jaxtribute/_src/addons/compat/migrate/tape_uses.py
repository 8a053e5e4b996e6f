"""Uses of a tape that `migrate` leaves to the reader, and what it says of them."""

from __future__ import annotations

import ast
from typing import TypeAlias

from jaxtribute._src.addons.compat.catalog.members import absent_from
from jaxtribute._src.addons.compat.migrate.findings import nodes

Scope: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
IN_A_LOOP = (
    "in a loop: ask for all gradients at once, before it. A function may return several losses as one tuple: write "
    "`losses, grads = jd.value_and_grads(function, variables)()`, with the variables of each of them"
)
"""Behind a call that asks a tape for a gradient."""


class ByArrayError(ValueError):
    """Says why a gradient by an array has to be written by hand."""


def other_use(scope: Scope, name: ast.Name) -> str:
    """Reason why a use of a tape is no gradient right after its block."""
    for part in nodes(scope, ast.Call):
        if isinstance(part.func, ast.Attribute) and part.func.value is name and part.func.attr == "watch":
            what = ast.unparse(part.args[0]) if part.args else "x"
            return (
                f"`{name.id}.watch({what})` asks for a gradient by an array: make `{what}` an argument of the "
                "function, and write jax.value_and_grad"
            )
    return (
        absent_use(scope, {name})
        or f"line {name.lineno} uses `{name.id}` for more than a gradient right after the block"
    )


def absent_use(scope: Scope, uses: set[ast.Name]) -> str:
    """Reason why a tape is asked for what no function gives by itself; empty if it is not."""
    for asked in nodes(scope, ast.Attribute):
        remedy = absent_from("tf.GradientTape").get(asked.attr) if asked.value in uses else None
        if remedy:
            return f"line {asked.lineno} asks for `{ast.unparse(asked)}`: {remedy}"
    return ""
