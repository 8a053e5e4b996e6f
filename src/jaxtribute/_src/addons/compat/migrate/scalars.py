"""Losses of tapes that are scalars, as far as the text of a program tells: of others a tape adds up the elements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from jaxtribute._src.addons.compat.migrate.calls import Function, Functions, Place
from jaxtribute._src.addons.compat.migrate.findings import assigned, keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names
from jaxtribute._src.addons.compat.migrate.tape_uses import Scope

_ARRAY, _UNKNOWN, _NUMBER, _SCALAR = range(4)
"""Levels of expressions: of several elements, unknown, a number that may scale a loss, a loss that is a scalar."""
_REDUCES = ("reduce_", "l2_loss", "compute_average_loss", "scale_regularization_loss", "global_norm", "norm")
_MAKES = ("Variable", "constant", "convert_to_tensor")
_LOSS = re.compile("loss(?!es)|cost|criterion|objective|energy|penalty|regulariz|elbo")
"""Parts of the names that programs give to scalars: asked if nothing is known of what gives them."""


def is_scalar(tree: ast.Module, block: ast.With, scope: Scope, loss: str) -> bool:
    """True if a loss that is assigned in a tape's block is a scalar, as far as the text of the program tells.

    Args:
      tree: the program.
      block: the tape's.
      scope: the function around the block, or the program.
      loss: the name of the loss.
    """
    place = tree if isinstance(scope, ast.AsyncFunctionDef) else scope
    level = _Reader(tree, block, place).named(loss, place)
    return level >= _NUMBER or (level == _UNKNOWN and _named_as_scalar(loss))


class _Reader:
    """Reads expressions."""

    def __init__(self, tree: ast.Module, block: ast.With, around: Place) -> None:
        self._block, self._around, self._names, self._values = block, around, Names(tree), assigned(tree)
        self._functions = Functions(tree, self._names)
        self._known: dict[tuple[str, Place], int] = {}

    def named(self, name: str, place: Place) -> int:
        """Level of a name: of all that is assigned to it in the block or the function, else of its only value."""
        if (name, place) in self._known:
            return self._known[name, place]
        self._known[name, place] = _NUMBER  # if its value is computed from itself, what else is in it counts
        made: list[int] = []
        for node in ast.walk(self._block if place is self._around else place):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if name in (one.id for target in targets for one in nodes(target, ast.Name)):
                    made.append(self._of(node.value, place))
        if not made and name in self._values:
            made.append(self._of(self._values[name], place))
        self._known[name, place] = _together(made)
        return self._known[name, place]

    def _of(self, node: ast.expr, place: Place) -> int:
        """Level of an expression."""
        if isinstance(node, ast.Constant):
            return _NUMBER
        if isinstance(node, ast.Name):
            return self.named(node.id, place)
        if isinstance(node, (ast.List, ast.Tuple, ast.ListComp)) or isinstance(getattr(node, "op", None), ast.MatMult):
            return _ARRAY
        if isinstance(node, ast.UnaryOp):
            return self._of(node.operand, place)
        if isinstance(node, (ast.BinOp, ast.IfExp)):
            parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.body, node.orelse)
            return _together(self._of(one, place) for one in parts)
        return self._called(node, place) if isinstance(node, ast.Call) else _UNKNOWN

    def _called(self, call: ast.Call, place: Place) -> int:
        """Level of what a call gives."""
        name, written = self._names.called_by(call), ast.unparse(call.func)
        made = call.func if isinstance(call.func, ast.Call) else self._values.get(written)
        if isinstance(made, ast.Call) and self._names.called_by(made).startswith("tf.keras.losses."):
            reduction = keyword(made, "reduction")
            return _ARRAY if reduction is not None and "none" in ast.unparse(reduction).lower() else _SCALAR
        if name.startswith("tf.keras.losses."):
            return _ARRAY  # a number for each row
        if name.startswith("tf."):
            return self._of_tensorflow(name.rpartition(".")[2], call, place)
        function = self._functions.called(call.func, place)
        level = _SCALAR if written == "sum" else _UNKNOWN if function is None else self._returned(function)
        return _SCALAR if level == _UNKNOWN and _named_as_scalar(written) else level

    def _of_tensorflow(self, name: str, call: ast.Call, place: Place) -> int:
        if name.startswith(_REDUCES):
            over = keyword(call, "axis") is not None or (name.startswith("reduce_") and len(call.args) > 1)
            return _ARRAY if over else _SCALAR
        if name in _MAKES:
            return _ARRAY if keyword(call, "shape") is not None or not call.args else self._of(call.args[0], place)
        return _together(self._of(one, place) for one in call.args)

    def _returned(self, function: Function) -> int:
        """Level of what a function of the program returns."""
        known = self._known.get(("", function))
        if known is None:
            self._known["", function] = _UNKNOWN  # a function that calls itself
            values = [one.value for one in nodes(function, ast.Return) if one.value is not None]
            several = any(isinstance(one, ast.Tuple) for one in values)
            known = _UNKNOWN if several else _together(self._of(one, function) for one in values)
            self._known["", function] = known
        return known


def _together(levels: Iterable[int]) -> int:
    """Level of what is computed from several: a loss stays one if it is not known what is beside it."""
    found = {*levels}
    if not found or _ARRAY in found:
        return _ARRAY if found else _UNKNOWN
    return _SCALAR if _SCALAR in found else min(found)


def _named_as_scalar(name: str) -> bool:
    return bool(_LOSS.search(name.lower())) and "per_" not in name.lower()
