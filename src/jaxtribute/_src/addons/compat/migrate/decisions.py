"""Questions that Python asks of an array in a function that is traced: AutoGraph rewrites them, nothing does here."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.arrays import MAYBE, SURE, Arrays, is_dataset
from jaxtribute._src.addons.compat.migrate.calls import Functions, Place
from jaxtribute._src.addons.compat.migrate.findings import Finding, keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

_WRITE = {
    "if": "tf.cond or tf.where",
    "while": "tf.while_loop",
    "x if y else z": "tf.where, or tf.cond",
    "assert": "jax.experimental.checkify, or check it outside",
    "and": "tf.logical_and",
    "or": "tf.logical_or",
    "not": "tf.logical_not",
    "x < y < z": "tf.logical_and of both comparisons",
    "in": "tf.reduce_any(tf.equal(...))",
    "match": "tf.cond or tf.switch_case",
    "int()": "tf.cast(..., tf.int32)",
    "float()": "tf.cast(..., tf.float32)",
    "bool()": "tf.cast(..., tf.bool)",
    "range()": "tf.while_loop, or give a number of Python",
    "tf.range()": "tf.while_loop, or give a number of Python",
    "min()": "tf.minimum or tf.reduce_min",
    "max()": "tf.maximum or tf.reduce_max",
    "any()": "tf.reduce_any",
    "all()": "tf.reduce_all",
}
_CALLED = ("int", "float", "bool", "range", "min", "max", "any", "all")
_OF_RANGE = ("start", "limit", "delta")
_ASSIGNS = ("assign", "assign_add", "assign_sub", "apply_gradients", "minimize", "update_state")


def find(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Questions of Python's that arrays answer in functions which `tf.function` compiles, or which those call."""
    functions = Functions(tree, names)
    arrays = Arrays(functions, names)
    compiled = functions.compiled()
    for place in functions.places:
        if place in arrays.traced and not _runs_as_python(place, functions, names):
            call = compiled.get(place) if isinstance(place, ast.FunctionDef) else None
            signed = call is not None and (keyword(call, "input_signature") is not None)
            yield from _Reader(functions, arrays, names, place, signed).find()


def _runs_as_python(place: Place, functions: Functions, names: Names) -> bool:
    """True for a function that loops over a dataset which it is given: it is not traced."""
    arguments = {one.arg for one in nodes(place.args, ast.arg)} if isinstance(place, ast.FunctionDef) else set[str]()
    loops = (one.iter for one in functions.own(place) if isinstance(one, (ast.For, ast.comprehension)))
    return any(
        isinstance(over, ast.Name) and over.id in arguments and is_dataset(over, names) and "iterator" not in over.id
        for over in loops
    )


class _Reader:
    """Reads one function."""

    def __init__(self, functions: Functions, arrays: Arrays, names: Names, place: Place, signed: bool) -> None:
        self._functions, self._arrays, self._names, self._place = functions, arrays, names, place
        arguments = nodes(place.args, ast.arg) if signed and isinstance(place, ast.FunctionDef) else ()
        self._signed = {one.arg for one in arguments}
        """Names of the arguments that `input_signature` makes tensors."""
        self._asked = set[ast.AST]()
        """The parts of conditions, whose conditions are told already."""

    def find(self) -> Iterator[Finding]:
        """Finds what is asked, the outermost question of each expression."""
        for node in self._functions.own(self._place):
            for what, level in self._questions(node):
                if level and isinstance(node, (ast.expr, ast.stmt)):
                    yield _finding(node, what, level, self._signed)
            if isinstance(node, ast.comprehension):
                for test in node.ifs:
                    if level := self._truth(test):
                        yield _finding(test, "if", level, self._signed)

    def _questions(self, node: ast.AST) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.If):
            yield "if", self._truth(node.test)
        elif isinstance(node, ast.While):
            yield "while", self._truth(node.test)
        elif isinstance(node, ast.IfExp):
            yield "x if y else z", self._truth(node.test)
        elif isinstance(node, ast.Assert):
            yield "assert", self._truth(node.test)
        elif isinstance(node, ast.Match):
            value = self._arrays.of(node.subject, self._place)
            yield "match", value.level if value.level == SURE and not value.nest else 0
        elif isinstance(node, ast.Call):
            yield self._called(node)
        elif node in self._asked:
            return
        elif isinstance(node, ast.BoolOp):
            what = "and" if isinstance(node.op, ast.And) else "or"
            # The last part is the result, of which nothing is asked.
            yield what, max(self._truth(one) for one in node.values[:-1])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "not", self._truth(node.operand)
        elif isinstance(node, ast.Compare):
            what = "in" if isinstance(node.ops[0], (ast.In, ast.NotIn)) else "x < y < z"
            if what == "in" or len(node.ops) > 1:
                yield what, self._arrays.of(node, self._place).level

    def _called(self, call: ast.Call) -> tuple[str, int]:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if self._names.called_by(call) == "tf.range":
            return "tf.range()", self._length(call)
        if name not in _CALLED or not call.args:
            return "", 0
        values = [self._arrays.of(one, self._place) for one in call.args]
        level = max(one.level for one in values)
        if name in ("min", "max", "any", "all"):
            # Of an argument by itself it may as well be the largest of a list.
            level = level if level == SURE or len(values) > 1 else 0
        elif values[0].nest or (name in ("range", "bool") and level == MAYBE and isinstance(call.args[-1], ast.Name)):
            level = 0
        return f"{name}()", level

    def _length(self, call: ast.Call) -> int:
        """Level of what says how many numbers `tf.range` gives: 0 if Python may know it."""
        given = [*call.args, *(one.value for one in call.keywords if one.arg in _OF_RANGE)]
        values = [self._arrays.of(one, self._place) for one in given]
        return SURE if any(one.level == SURE and not one.nest for one in values) else 0

    def _truth(self, test: ast.expr) -> int:
        """Level of what decides whether an expression is true: 0 if Python knows it."""
        self._asked.add(test)
        if isinstance(test, ast.BoolOp):
            return max([self._truth(one) for one in test.values])
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._truth(test.operand)
        if isinstance(test, ast.NamedExpr):
            return self._truth(test.value)
        value = self._arrays.of(test, self._place)
        if isinstance(test, ast.Compare) or (isinstance(test, ast.BinOp) and not value.nest):
            return value.level
        # An argument by itself may be a flag, and of a list Python asks for its length.
        return value.level if value.level == SURE and not value.nest else 0


def _finding(node: ast.expr | ast.stmt, what: str, level: int, signed: set[str]) -> Finding:
    asked = "number" if what.endswith("()") else "condition"
    if level == SURE:
        advice = f"the {asked} must be known while the function is traced, and an array gives it: use {_WRITE[what]}"
    else:
        advice = f"if a tensor gives the {asked}, this is an error while the function is traced: use {_WRITE[what]}"
    if isinstance(node, ast.If) and any(_assigns(one) for one in nodes(node, ast.Call)):
        advice += (
            ". In a function that strategy.run calls, assign by v.assign(tf.where(condition, new, v)), or decide "
            "around it: tf.cond(condition, lambda: strategy.run(f), lambda: None)"
        )
    asked_of = node.test if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) else node
    made = sorted({one.id for one in nodes(asked_of, ast.Name)} & signed)
    if made:
        advice += f". `input_signature` makes a tensor of `{made[0]}`: without it the function takes a number of Python"
    name = what if level == SURE else f"{what}, maybe"
    return Finding(node.lineno, node.col_offset + 1, f"{name} in tf.function", Kind.DIFFERENT, advice)


def _assigns(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in (*_ASSIGNS, "run")
