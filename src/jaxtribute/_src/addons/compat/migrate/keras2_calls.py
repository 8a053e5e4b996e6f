"""Calls of Keras 2 that have one counterpart in Keras 3, and are rewritten: losses and metrics of `compile`, sums."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind, in_keras
from jaxtribute._src.addons.compat.migrate.findings import Edit, Finding, Source, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

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
_LOSS, _METRICS = "compiled_loss", "compiled_metrics"


def find(source: Source, names: Names) -> Iterator[Finding]:
    """Calls that can be rewritten."""
    yield from _backend(source, names)
    yield from _losses(source)
    yield from _metrics(source)
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
    """`Adam(lr=0.1)`, which is `Adam(learning_rate=0.1)`."""
    for call in nodes(source.tree, ast.Call):
        name = in_keras(names.called_by(call) or "")
        for given in call.keywords if name.startswith("tf.keras.optimizers.") else ():
            if given.arg == "lr":
                start = source.place(given.lineno, given.col_offset)
                edit = Edit(start, start + len("lr"), "learning_rate")
                place = (given.lineno, given.col_offset + 1, f"{name}(lr=)")
                yield Finding(*place, Kind.RENAMED, "write learning_rate=", (edit,))


def _places(source: Source, names: Names) -> Iterator[Finding]:
    """`model.compile(optimizer, loss, metrics)`: in Keras 3 the third argument is another one."""
    for call in nodes(source.tree, ast.Call):
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr != "compile" or names.of(func) is not None:
            continue
        if len(call.args) < 3 or any(isinstance(one, ast.Starred) for one in call.args):
            continue
        edits: list[Edit] = []
        for given, name in zip(call.args[2:], _COMPILE, strict=False):
            start, _ = source.span(given)
            edits.append(Edit(start, start, f"{name}="))
        advice = "arguments behind the loss have other places in Keras 3: write metrics="
        yield Finding(
            call.lineno, call.col_offset + 1, ".compile(optimizer, loss, ...)", Kind.RENAMED, advice, tuple(edits)
        )


def _losses(source: Source) -> Iterator[Finding]:
    """`self.compiled_loss(y, p)`, as training steps of Keras 2 have it; the model's own losses are in both."""
    for node in nodes(source.tree, ast.Call):
        if _is_of_self(node.func, _LOSS) and len(node.args) in (2, 3):
            y, predicted, *weight = map(source.of, node.args)
            given = [f"y={y}", f"y_pred={predicted}", *[f"sample_weight={one}" for one in weight]]
            given += [f"sample_weight={source.of(one.value)}" for one in node.keywords if one.arg == "sample_weight"]
            text = f"self.compute_loss({', '.join(given)})"
            place = (node.lineno, node.col_offset + 1, f".{_LOSS}")
            yield Finding(*place, Kind.RENAMED, f"write {text}", (source.replace(node, text),))


def _metrics(source: Source) -> Iterator[Finding]:
    """`self.compiled_metrics.update_state(y, p)`; the mean of losses was updated with the loss itself."""
    loss = ""
    for node in nodes(source.tree, ast.Assign):
        called = node.value.func if isinstance(node.value, ast.Call) else None
        if called is not None and (_is_of_self(called, _LOSS) or _is_of_self(called, "compute_loss")):
            loss = source.of(node.targets[0])
    for node in nodes(source.tree, ast.Expr):
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not loss:
            continue
        if call.func.attr == "update_state" and _is_of_self(call.func.value, _METRICS):
            indent = " " * node.col_offset
            keywords = [f"{one.arg}={source.of(one.value)}" for one in call.keywords]
            given = ", ".join([*map(source.of, call.args), *keywords])
            text = (
                f'for metric in self.metrics:\n{indent}    if metric.name == "loss":\n'
                f"{indent}        metric.update_state({loss})\n{indent}    else:\n"
                f"{indent}        metric.update_state({given})"
            )
            place = (node.lineno, node.col_offset + 1, f".{_METRICS}")
            yield Finding(*place, Kind.RENAMED, f"write {text}", (source.replace(node, text),))


def _is_of_self(node: ast.expr, attribute: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
