"""Optimizers of Keras that are to update `tf.Variable`s on parameter servers, where they update layers alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.findings import Finding, Source, assigned, nodes
from jaxtribute._src.addons.compat.migrate.graphs import strategy_made
from jaxtribute._src.addons.compat.migrate.naming import Names

_UPDATES = ("apply_gradients", "minimize")


def find(source: Source, names: Names) -> Iterator[Finding]:
    """Updates of `tf.Variable`s by an optimizer of Keras, in programs that have parameter servers alone."""
    made = {strategy_made(call, names).rpartition(".")[2] for call in nodes(source.tree, ast.Call)} - {"", "Strategy"}
    if made != {"ParameterServerStrategy"}:
        return
    values = assigned(source.tree)
    for call in nodes(source.tree, ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _UPDATES:
            continue
        if not names.made_by(call.func.value).startswith("tf.keras.optimizers."):
            continue
        given = [*call.args, *(one.value for one in call.keywords)]
        own = dict.fromkeys(name for one in given for name in _variables(one, names, values))
        if own:
            optimizer, listed = source.of(call.func.value), ", ".join(own)
            advice = (
                f"an optimizer of Keras updates layers alone there, and is refused for {listed}: in strategy.scope() "
                f"write {optimizer} = jd.Optimizer(optax.sgd(0.1), [{listed}]), or another transformation of Optax, "
                "without build()"
            )
            place = (call.lineno, call.col_offset + 1, "optimizer of Keras on parameter servers")
            yield Finding(*place, Kind.DIFFERENT, advice)


def _variables(node: ast.expr, names: Names, values: dict[str, ast.expr], depth: int = 4) -> Iterator[str]:
    """Names of `tf.Variable`s in an expression, and in what the names in it were given."""
    for part in ast.walk(node):
        if not isinstance(part, (ast.Name, ast.Attribute)):
            continue
        if names.made_by(part) == "tf.Variable":
            yield ast.unparse(part)
        elif isinstance(part, ast.Name) and part.id in values and depth:
            value = values[part.id]
            # Of a call only what it makes is known; a list holds its parts.
            if not isinstance(value, ast.Call):
                yield from _variables(value, names, values, depth - 1)
