"""Keras's loss scale in loops of one's own, whose update no compiled step can hold: bfloat16 does without."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.findings import Finding, Source, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

_OPTIMIZER = "tf.keras.mixed_precision.LossScaleOptimizer"
_POLICIES = (
    "tf.keras.mixed_precision.Policy",
    "tf.keras.mixed_precision.set_global_policy",
    "tf.keras.config.set_dtype_policy",
    "tf.keras.DTypePolicy",
)
_OF_KERAS_2 = ("get_scaled_loss", "get_unscaled_gradients")
_METHODS = ("scale_loss", "get_scaled_loss", "get_unscaled_gradients")
"""Methods of the optimizer that give their argument, scaled or unscaled."""
_ADVICE = "bfloat16 needs no loss scale, whose update cannot be compiled in a loop of one's own: write "


def find(source: Source, names: Names) -> Iterator[Finding]:
    """The scaled optimizer, its methods and the policy, in programs with a tape."""
    calls = list(nodes(source.tree, ast.Call))
    scaled = [call for call in calls if names.called_by(call) == _OPTIMIZER and len(call.args) == 1]
    # Within a tape they are changed once the block is a function; the optimizer itself is gone by then.
    if not any(names.called_by(call) == _OPTIMIZER for call in calls):
        for call in calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in _OF_KERAS_2 and len(call.args) == 1:
                text = source.of(call.args[0])
                place = (call.lineno, call.col_offset + 1, "loss scale")
                yield Finding(*place, Kind.DIFFERENT, _ADVICE + text, (source.replace(call, text),))
    if not scaled or not any(names.called_by(call) == "tf.GradientTape" for call in calls):
        return
    made: set[str] = set()
    for node in nodes(source.tree, ast.Assign):
        if node.value in scaled:
            made.add(ast.unparse(node.targets[0]))
    for call in calls:
        text = None
        if call in scaled:
            text = source.of(call.args[0])
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS and call.args:
            text = source.of(call.args[0]) if ast.unparse(call.func.value) in made else None
        elif names.called_by(call) in _POLICIES and call.args and _is_half(call.args[0]):
            text = f'{source.of(call.func)}("mixed_bfloat16")'
        if text is not None:
            place = (call.lineno, call.col_offset + 1, "loss scale")
            yield Finding(*place, Kind.DIFFERENT, _ADVICE + text, (source.replace(call, text),))


def _is_half(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "mixed_float16"
