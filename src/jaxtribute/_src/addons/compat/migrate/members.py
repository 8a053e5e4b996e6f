"""Members that an object of a known kind has in TensorFlow, and not here: `step.function_spec`, `variable.ref()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.catalog.members import absent_from
from jaxtribute._src.addons.compat.migrate.arrays import SURE, Arrays
from jaxtribute._src.addons.compat.migrate.calls import Functions, Place
from jaxtribute._src.addons.compat.migrate.findings import Finding, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

_MAKERS = {
    "tf.summary.create_file_writer": "tf.summary.SummaryWriter",
    **{
        name: name
        for name in (
            "tf.function",
            "tf.IndexedSlices",
            "tf.TensorShape",
            "tf.TensorSpec",
            "tf.Variable",
            "tf.data.Options",
            "tf.io.TFRecordOptions",
            "tf.io.gfile.GFile",
            "tf.train.Checkpoint",
        )
    },
}
"""Classes of what a call returns, by what it calls."""
_METHODS = {
    ("tf.function", "get_concrete_function"): "tf.function",
    ("tf.train.Checkpoint", "restore"): "tf.train.RestoreStatus",
    ("tf.train.Checkpoint", "read"): "tf.train.RestoreStatus",
    ("tf.data.Dataset", "as_numpy_iterator"): "tf.data.NumpyIterator",
    ("tf.data.Iterator", "get_next_as_optional"): "tf.experimental.Optional",
    ("tf.distribute.DistributedIterator", "get_next_as_optional"): "tf.experimental.Optional",
}
"""Classes of what methods return."""
_ITERATORS = {
    "tf.data.Dataset": "tf.data.Iterator",
    "tf.distribute.DistributedDataset": "tf.distribute.DistributedIterator",
}
_OF_ARRAYS = {**absent_from("tf.Variable"), **absent_from("tf.Tensor")}
"""Advice for members of what may be a variable as well: an array has none of those either."""
_BY_OTHERS = ("name", "numpy", "get_shape", "set_shape")
"""Members of tensors that are told of whatever has them, or that a variable has as well."""


def find(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Members of functions, variables, iterators, checkpoints, tensors and their like that are not here."""
    functions = Functions(tree, names)
    kinds = _Kinds(functions, names)
    arrays = Arrays(functions, names)
    for place in functions.places:
        for node in functions.own(place):
            if not isinstance(node, ast.Attribute):
                continue
            of = kinds.of(node.value, place)
            known = absent_from(of)
            if not of and node.attr not in _BY_OTHERS and arrays.of(node.value, place) == (SURE, False):
                of, known = "tf.Tensor", _OF_ARRAYS
            # Names that `names` tells are looked up with all others.
            if node.attr in known and not names.of(node.value):
                yield _finding(node, of, known[node.attr])
    for handler in nodes(tree, ast.ExceptHandler):
        caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type or handler]
        if not any((names.of(one) or "").startswith("tf.errors.") for one in caught):
            continue
        for statement in handler.body:
            for node in nodes(statement, ast.Attribute):
                remedy = absent_from("tf.errors.OpError").get(node.attr)
                if remedy and isinstance(node.value, ast.Name) and node.value.id == handler.name:
                    yield _finding(node, "tf.errors.OpError", remedy)


def _finding(node: ast.Attribute, of: str, remedy: str) -> Finding:
    column = (node.end_col_offset or 0) - len(node.attr) + 1
    return Finding(node.end_lineno or 0, column, f"{of}.{node.attr}", Kind.ABSENT, remedy)


class _Kinds:
    """TensorFlow's classes of a program's objects, as far as its assignments tell."""

    def __init__(self, functions: Functions, names: Names) -> None:
        self._functions, self._names = functions, names
        self._compiled = functions.compiled()
        self._known: dict[str, str] = {}
        # Twice, for names that are assigned further down than they are used.
        for place in functions.places * 2:
            for node in functions.own(place):
                self._take(node, place)

    def of(self, node: ast.expr, place: Place) -> str:
        """TensorFlow's class of what an expression is an object of; empty if it is not known."""
        known = self._names.of(node)
        if known in _ITERATORS:
            return known
        if isinstance(node, (ast.Name, ast.Attribute)):
            function = self._functions.called(node, place)
            # An object whose `__call__` is compiled is called by another name, and has members of its own.
            own = function is not None and function.name == (node.id if isinstance(node, ast.Name) else node.attr)
            return "tf.function" if own and function in self._compiled else self._known.get(ast.unparse(node), "")
        if not isinstance(node, ast.Call):
            return ""
        made = _MAKERS.get(self._names.called_by(node), "")
        if made == "tf.function" and not node.args:
            return ""  # a decorator
        if made:
            return made
        if isinstance(node.func, ast.Attribute):
            return _METHODS.get((self.of(node.func.value, place), node.func.attr), "")
        if isinstance(node.func, ast.Name) and node.func.id == "iter" and node.args:
            return _ITERATORS.get(self.of(node.args[0], place), "")
        return ""

    def _take(self, node: ast.AST, place: Place) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._name(target, node.value, place)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._name(node.optional_vars, node.context_expr, place)

    def _name(self, target: ast.expr, value: ast.expr, place: Place) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, of in zip(target.elts, value.elts, strict=True):
                self._name(one, of, place)
        elif isinstance(target, (ast.Name, ast.Attribute)):
            kind = self.of(value, place)
            if kind:
                self._known.setdefault(ast.unparse(target), kind)
