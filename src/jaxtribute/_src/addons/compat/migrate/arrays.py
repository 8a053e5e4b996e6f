"""Expressions that are arrays while a function is traced: variables, results of TensorFlow's functions, arguments."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from jaxtribute._src.addons.compat.migrate.calls import Function, Functions, Place
from jaxtribute._src.addons.compat.migrate.findings import keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

MAYBE, SURE = 1, 2
_ROUNDS = 4
"""Number of times that functions are read, each time with what is known of those that they call."""
_MODULES = ("math", "linalg", "nn", "random", "image", "signal", "bitwise", "raw_ops", "keras.ops", "keras.backend")
_KERAS = ("keras.losses", "keras.metrics", "keras.activations")
# What these return is known while a function is traced, or is no array.
_KNOWN = {
    "as_dtype", "autograph", "broadcast_static_shape", "control_dependencies", "device", "executing_eagerly",
    "function",
    "get_logger", "get_static_value", "group", "init_scope", "inside_function", "is_tensor", "is_symbolic_tensor",
    "name_scope", "no_gradient", "numpy_function", "print", "py_function", "rank", "shape", "shape_n", "size",
    "recompute_grad", "custom_gradient", "while_loop", "floatx", "epsilon", "int_shape", "ndim", "image_data_format",
    "backend", "learning_phase", "variable_creator_scope",
}  # fmt: skip
_ABOUT = {
    "shape", "ndim", "dtype", "name", "trainable", "device", "op", "graph", "aggregation", "synchronization", "size",
    "rank", "built", "itemsize", "nbytes", "sharding",
}  # fmt: skip
"""Attributes of an array that are none."""
_NO_ARRAYS = {
    "numpy", "get_shape", "item", "as_list", "has_value", "keys", "set_shape", "append", "extend", "format", "join",
    "startswith", "endswith", "index", "count", "update", "add",
}  # fmt: skip
_NUMBERS = {
    "int", "float", "bool", "len", "isinstance", "issubclass", "hasattr", "callable", "type", "id", "str", "repr",
    "hash", "range", "any", "all", "print", "super", "getattr", "setattr", "vars", "dir", "format", "open",
}  # fmt: skip
_NESTS = {"list", "tuple", "set", "dict", "reversed", "sorted", "iter", "zip", "enumerate", "map", "filter"}
_OF_OPTIMIZERS = ("iterations", "learning_rate", "lr")
_WEIGHTS = ("variables", "trainable_variables", "weights", "trainable_weights", "non_trainable_variables")
_FLAGS = {"self", "cls", "training", "mode", "is_training", "train"}
_MAKERS = ("tf.Variable", "tf.compat.v1.get_variable", "tf.train.get_or_create_global_step")


class Value(NamedTuple):
    """Value of an expression.

    Attributes:
      level: 0 for one of Python's, `MAYBE` for an argument of which nothing is known, `SURE` for an array.
      nest: True for a list, a tuple or a dictionary of such values.
    """

    level: int = 0
    nest: bool = False


_PYTHON = Value()


def joined(values: Iterable[Value]) -> Value:
    """Value that is one of several."""
    arrays = [one for one in values if one.level]
    return Value(max((one.level for one in arrays), default=0), bool(arrays) and all(one.nest for one in arrays))


class Arrays:
    """Arrays in the functions of a program that are traced.

    Attributes:
      traced: the functions that are.
    """

    def __init__(self, functions: Functions, names: Names) -> None:
        self._functions, self._names = functions, names
        self._env: dict[Place, dict[str, Value]] = {place: {} for place in functions.places}
        self._returned: dict[Function, Value] = {}
        self._attributes = _variable_attributes(functions, names)
        self._compiled = functions.compiled()
        self._calls = {place: list(functions.calls(place)) for place in functions.places}
        self._elsewhere = {place: _given_away(functions, place) for place in functions.places}
        self.traced: set[Function] = set(self._compiled)
        for _ in range(_ROUNDS):
            for place in functions.places:
                self._bind(place)
            for place in functions.places:
                self._arguments(place)

    def of(self, node: ast.expr, place: Place) -> Value:
        """Value of an expression in a place."""
        if isinstance(node, ast.Name):
            return self._named(node.id, place)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, place)
        if isinstance(node, ast.Call):
            return self._call(node, place)
        if isinstance(node, ast.Subscript):
            return Value(self.of(node.value, place).level)
        if isinstance(node, ast.Compare):
            return self._compared(node, place)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _PYTHON
        parts = [self.of(one, place) for one in _parts(node)]
        nests = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
        return Value(joined(parts).level, True) if isinstance(node, nests) else joined(parts)

    def _named(self, name: str, place: Place) -> Value:
        while True:
            known = self._env[place]
            if name in known or isinstance(place, ast.Module):
                return known.get(name, _PYTHON)
            place = self._functions.around(place)

    def _attribute(self, node: ast.Attribute, place: Place) -> Value:
        if node.attr in _WEIGHTS:
            return Value(SURE, True)
        of = self._functions.class_of(place)
        owner = of.name if of is not None and ast.unparse(node.value) == "self" else ""
        holds = self._attributes.get((owner, node.attr)) or (None if owner else self._attributes.get(("", node.attr)))
        if holds is not None:
            return holds
        base = ast.unparse(node.value)
        if node.attr in _OF_OPTIMIZERS and ("opt" in base or self._names.made_by(node.value).startswith(_KERAS_OPT)):
            return Value(SURE)
        value = self.of(node.value, place)
        # What an unknown argument has may be any setting of the program's.
        return Value(SURE) if value.level == SURE and node.attr not in _ABOUT else _PYTHON

    def _compared(self, node: ast.Compare, place: Place) -> Value:
        sides = [node.left, *node.comparators]
        found: list[Value] = []
        for op, (left, right) in zip(node.ops, itertools.pairwise(sides), strict=True):
            if isinstance(op, (ast.Is, ast.IsNot)) or any(map(_is_text, (left, right))):
                continue
            # `key in features` looks for a key.
            found.append(self.of(left, place))
            if not isinstance(op, (ast.In, ast.NotIn)):
                found.append(self.of(right, place))
        return Value(max((one.level for one in found), default=0))

    def _call(self, node: ast.Call, place: Place) -> Value:
        function = self._functions.called(node.func, place)
        if function is not None:
            return self._returned.get(function, _PYTHON)
        name = self._names.called_by(node)
        given = [self.of(one, place) for one in (*node.args, *(one.value for one in node.keywords))]
        if name.startswith("tf."):
            return self._of_tensorflow(name, node, place)
        if isinstance(node.func, ast.Name):
            return self._of_function(node.func, given)
        return self._of_method(node.func, given, place) if isinstance(node.func, ast.Attribute) else _PYTHON

    def _of_tensorflow(self, name: str, node: ast.Call, place: Place) -> Value:
        module, _, last = name.removeprefix("tf.").rpartition(".")
        if name in _MAKERS:
            return Value(SURE)
        if last in ("run", "experimental_run_v2") and module.endswith("Strategy"):
            function = self._functions.called(node.args[0], place) if node.args else None
            return Value(SURE, True) if function is None else self._returned.get(function, _PYTHON)
        if last in ("reduce", "gather", "all_reduce", "all_gather") and module.startswith("distribute."):
            return Value(SURE)
        if last in _KNOWN or not last[:1].islower():
            return _PYTHON
        return Value(SURE) if module in ("", *_MODULES, *_KERAS) else _PYTHON

    def _of_function(self, function: ast.Name, given: list[Value]) -> Value:
        if function.id == "next":
            return Value(SURE, True)
        if function.id in _NUMBERS:
            return _PYTHON
        if function.id in _NESTS:
            return Value(joined(given).level, True)
        made = self._names.made_by(function)
        if made.startswith("tf.keras.") and not made.startswith(_KERAS_OPT):
            return Value(SURE)
        # Of an imported function nothing is known; of a class neither.
        return _PYTHON if function.id[:1].isupper() else Value(min(joined(given).level, MAYBE))

    def _of_method(self, function: ast.Attribute, given: list[Value], place: Place) -> Value:
        method = function.attr
        if method in _NO_ARRAYS or method in ("Variable", "add_weight"):
            return Value(SURE if method in ("Variable", "add_weight") else 0)
        if method in ("get_next", "get_value"):
            return Value(SURE, True)
        made = self._names.made_by(function.value)
        if method == "gradient" and made == "tf.GradientTape":
            return Value(SURE, True)
        if method == "result" and made.startswith("tf.keras.metrics."):
            return Value(SURE)
        base = self.of(function.value, place)
        if base.level:
            return Value(base.level, base.nest or method in ("items", "values"))
        if self._names.made_by(function).startswith("tf.keras."):
            return Value(SURE)
        return Value(min(joined(given).level, MAYBE))

    def _bind(self, place: Place) -> None:
        """Gives the names of a place their values."""
        for node in self._functions.own(place):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value, place)
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
                self._assign(node.target, node.value, place)
            elif isinstance(node, (ast.For, ast.comprehension)):
                self._loop(node.target, node.iter, place)
            elif isinstance(node, ast.Return) and node.value is not None and isinstance(place, ast.FunctionDef):
                before = self._returned.get(place, _PYTHON)
                self._returned[place] = joined([before, self.of(node.value, place)])

    def _assign(self, target: ast.expr, value: ast.expr, place: Place) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, of in zip(target.elts, value.elts, strict=True):
                self._assign(one, of, place)
            return
        self._store(target, self.of(value, place), place)

    def _store(self, target: ast.expr, value: Value, place: Place) -> None:
        if isinstance(target, ast.Name):
            own = self._elsewhere[place].get(target.id, place)  # `global` or `nonlocal` may have given it away
            self._env[own][target.id] = joined([self._env[own].get(target.id, _PYTHON), value])
        elif isinstance(target, (ast.Tuple, ast.List)):
            for one in target.elts:
                self._store(one, Value(value.level), place)
        elif isinstance(target, ast.Starred):
            self._store(target.value, Value(value.level, True), place)

    def _loop(self, target: ast.expr, over: ast.expr, place: Place) -> None:
        """Gives the names of a loop their values: an element, and of `enumerate` a number before it."""
        called = over.func.id if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) else ""
        parts = target.elts if isinstance(target, ast.Tuple) else []
        method = over.func.attr if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) else ""
        if isinstance(over, ast.Call) and called == "enumerate" and len(parts) == 2 and over.args:
            self._store(parts[0], _PYTHON, place)
            self._loop(parts[1], over.args[0], place)
        elif isinstance(over, ast.Call) and called == "zip" and len(parts) == len(over.args):
            for one, of in zip(parts, over.args, strict=True):
                self._loop(one, of, place)
        elif isinstance(over, ast.Call) and method == "items" and len(parts) == 2:
            self._store(parts[0], _PYTHON, place)
            self._store(parts[1], Value(self.of(over, place).level), place)
        elif self._names.called_by(over) == "tf.range":
            # Its turns are traced, each with a number.
            self._store(target, _PYTHON, place)
        elif is_dataset(over, self._names):
            self._store(target, Value(SURE), place)
        else:
            self._store(target, Value(self.of(over, place).level), place)

    def _arguments(self, place: Place) -> None:
        """Gives arguments of functions that a place calls their values; those called by traced functions are traced."""
        if isinstance(place, ast.FunctionDef) and place in self._compiled:
            self._first(place)
        for function, given in self._calls[place]:
            if place in self.traced:
                self.traced.add(function)
            known = self._env[function]
            for name, value in given.items():
                found = Value(SURE) if value is None else self.of(value, place)
                # Of values that come from code which is not traced only arrays are known as such.
                if place in self.traced or found.level == SURE:
                    known[name] = joined([known.get(name, _PYTHON), found])

    def _first(self, function: Function) -> None:
        """Gives the arguments of a compiled function their values, as far as it says itself what they are."""
        arguments = function.args
        optional = arguments.args[len(arguments.args) - len(arguments.defaults) :] if arguments.defaults else []
        call, known = self._compiled[function], self._env[function]
        signed = call is not None and keyword(call, "input_signature") is not None
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            said = "" if one.annotation is None else ast.unparse(one.annotation)
            if one.arg in _FLAGS or said in ("int", "float", "bool", "str"):
                level = 0
            elif signed or said.endswith("Tensor"):
                level = SURE
            else:
                level = (
                    0 if one in optional or one in arguments.kwonlyargs or self._numbers(function, one.arg) else MAYBE
                )
            known[one.arg] = joined([known.get(one.arg, _PYTHON), Value(level)])

    def _numbers(self, function: Function, name: str) -> bool:
        """True if all calls of a function give an argument numbers of Python, texts or None."""
        given = [
            (arguments[name], place)
            for place in self._functions.places
            for called, arguments in self._calls[place]
            if called is function and name in arguments
        ]
        return bool(given) and all(value is not None and self._is_number(value, place) for value, place in given)

    def _is_number(self, node: ast.expr, place: Place, depth: int = 4) -> bool:
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and node.func.id in ("int", "float", "bool", "len", "str")
        if isinstance(node, (ast.BinOp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.IfExp)):
            parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
            return all(self._is_number(one, place, depth) for one in parts)
        if not isinstance(node, ast.Name) or not depth:
            return False
        found = False
        for one in self._functions.own(place):
            if isinstance(one, ast.Assign) and any(name.id == node.id for name in _targets(one)):
                if not isinstance(one.targets[0], ast.Name) or not self._is_number(one.value, place, depth - 1):
                    return False
                found = True
            elif isinstance(one, ast.For) and any(name.id == node.id for name in nodes(one.target, ast.Name)):
                called = one.iter.func if isinstance(one.iter, ast.Call) else None
                first = one.target.elts[0] if isinstance(one.target, ast.Tuple) else one.target
                counts = isinstance(called, ast.Name) and called.id in ("range", "enumerate")
                if not counts or not isinstance(first, ast.Name) or first.id != node.id:
                    return False
                found = True
        return found


_KERAS_OPT = ("tf.keras.optimizers.", "tf.keras.callbacks.")


def is_dataset(node: ast.expr, names: Names) -> bool:
    """True if an expression is a dataset, or an iterator of one by its name."""
    if (names.of(node) or "").endswith("Dataset"):
        return True
    # By its name alone, if nothing in the text says what it holds.
    return isinstance(node, ast.Name) and node.id.endswith(("dataset", "iterator"))


def _parts(node: ast.expr) -> list[ast.expr]:
    """The parts of an expression of which its value consists, or of which it is computed."""
    if isinstance(node, ast.BinOp):
        text = isinstance(node.left, ast.JoinedStr) or isinstance(getattr(node.left, "value", None), str)
        return [] if text else [node.left, node.right]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, (ast.BoolOp, ast.Dict)):
        return node.values
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return node.elts
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return [node.elt]
    if isinstance(node, (ast.Starred, ast.NamedExpr, ast.DictComp)):
        return [node.value]
    return [node.operand] if isinstance(node, ast.UnaryOp) else []


def _given_away(functions: Functions, place: Place) -> dict[str, Place]:
    """The names in a place that are `global` or `nonlocal`, each with the place in which it is."""
    found: dict[str, Place] = {}
    for node in functions.own(place):
        if isinstance(node, ast.Global):
            found |= dict.fromkeys(node.names, functions.tree)
        elif isinstance(node, ast.Nonlocal) and isinstance(place, ast.FunctionDef):
            found |= dict.fromkeys(node.names, functions.around(place))
    return found


def _targets(node: ast.Assign) -> list[ast.Name]:
    return [name for target in node.targets for name in nodes(target, ast.Name)]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, type(None)))


def _variable_attributes(functions: Functions, names: Names) -> dict[tuple[str, str], Value]:
    """Attributes that hold variables, each by its class; by no class if every assignment of that name does."""
    found: dict[tuple[str, str], list[Value]] = {}
    for place in functions.places:
        of = functions.class_of(place)
        for node in functions.own(place):
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            if value is None or not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            parts = (
                nodes(value, ast.Call) if isinstance(value, (ast.List, ast.Tuple, ast.Dict, ast.ListComp)) else [value]
            )
            made = any(_makes(one, names) for one in parts)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute):
                    owner = of.name if of is not None and ast.unparse(target.value) == "self" else ""
                    one = Value(SURE, value not in [*nodes(value, ast.Call)]) if made else _PYTHON
                    for key in {(owner, target.attr), ("", target.attr)}:
                        found.setdefault(key, []).append(one)
    # `tf.train.Checkpoint(step=tf.Variable(1))` has an attribute `step`.
    for call in nodes(functions.tree, ast.Call):
        if names.called_by(call) == "tf.train.Checkpoint":
            for one in call.keywords:
                if one.arg and _makes(one.value, names):
                    found.setdefault(("", one.arg), []).append(Value(SURE))
    return {key: joined(values) for key, values in found.items() if all(one.level for one in values)}


def _makes(node: ast.expr, names: Names) -> bool:
    """True if an expression makes a variable."""
    if not isinstance(node, ast.Call):
        return False
    own = isinstance(node.func, ast.Attribute) and node.func.attr == "add_weight"
    return own or names.called_by(node) in _MAKERS
