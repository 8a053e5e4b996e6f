"""Finds the code that AutoGraph would rewrite: control flow over arrays and datasets in compiled functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.compat.catalog.lookup import Kind
from jaxtribute._src.compat.migrate.findings import Finding, Source
from jaxtribute._src.compat.migrate.naming import Names

_KNOWN = "the condition must be known while the function is traced: use "
_ADVICE = {
    "for tf.range": "the loop runs while the function is traced, and each turn is compiled: keep it short, use "
    "tf.while_loop, or loop outside",
    "for dataset": "a loop that is traced cannot read elements: pass the dataset as an argument, loop outside, or pass "
    "iter(dataset) and call next",
    "for dataset argument": "called with a dataset the function runs as Python, and what strategy.run calls in it is "
    "compiled; jd.function refuses datasets",
    "get_next_as_optional": "an element can only be read from an iterator that is an argument of the function: pass it",
    "if": _KNOWN + "tf.cond or tf.where",
    "while": _KNOWN + "tf.while_loop",
    "next": "an element can only be read from an iterator that is an argument of the function: pass it",
}
_AS_IN_TENSORFLOW = ("for dataset argument",)
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
                    kind = Kind.SAME if what in _AS_IN_TENSORFLOW else Kind.DIFFERENT
                    yield Finding(node.lineno, node.col_offset + 1, name, kind, _ADVICE[what])


def _is_compiled(function: ast.FunctionDef, names: Names) -> bool:
    decorators = [part.func if isinstance(part, ast.Call) else part for part in function.decorator_list]
    return any(names.of(part) == "tf.function" for part in decorators)


def _what(node: ast.AST, names: Names, arguments: set[str]) -> str:
    """Name of the advised construct that a node is; empty for none."""
    if isinstance(node, ast.For):
        over = node.iter
        if isinstance(over, ast.Call) and names.of(over.func) == "tf.range":
            return "for tf.range"
        if not _is_dataset(over, names):
            return ""
        # By its name: what an argument is cannot be seen in the text, and an iterator works differently.
        given = isinstance(over, ast.Name) and over.id in arguments and "iterator" not in over.id
        return "for dataset argument" if given else "for dataset"
    if isinstance(node, (ast.If, ast.While)):
        # Only calls that surely make arrays: a bare comparison, such as `step < 10`, may be one of Python's numbers.
        called = [names.of(part.func) or "" for part in ast.walk(node.test) if isinstance(part, ast.Call)]
        return type(node).__name__.lower() if any(name.startswith(_CONDITIONS) for name in called) else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_next_as_optional":
        source = node.func.value
        return "get_next_as_optional" if isinstance(source, ast.Name) and source.id not in arguments else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next" and node.args:
        source = node.args[0]
        return "next" if isinstance(source, ast.Name) and source.id not in arguments else ""
    return ""


def _is_dataset(node: ast.expr, names: Names) -> bool:
    if (names.of(node) or "").endswith("Dataset"):
        return True
    # By its name alone, where nothing in the text says what it holds.
    return isinstance(node, ast.Name) and node.id.endswith(("dataset", "iterator"))


def find_fits(source: Source, names: Names) -> Iterator[Finding]:
    """Keras's `fit` and `evaluate` of a dataset in programs of parameter servers, whose workers make their own data."""
    made = {name for node in ast.walk(source.tree) if (name := _strategy_made(node, names))}
    if not any(name.endswith(".ParameterServerStrategy") for name in made):
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        given, method = node.args[0], node.func.attr
        if method not in ("fit", "evaluate") or not _is_dataset(given, names):
            continue
        text = f"lambda context: {source.of(given)}"
        advice = f"each worker makes its own data: write {method}({text}, ...)"
        # A function means the same as its dataset only here: other strategies take its batches as one worker's.
        edits = (source.replace(given, text),) if len(made) == 1 else ()
        place = (node.lineno, node.col_offset + 1, f"{method}(dataset) on parameter servers")
        yield Finding(*place, Kind.RENAMED if edits else Kind.DIFFERENT, advice, edits)


def find_weights(source: Source, names: Names) -> Iterator[Finding]:
    """`weights` of Keras's layers in programs with a `variable_partitioner`, where TensorFlow lists shards."""
    if not any(_splits(node, names) for node in ast.walk(source.tree)):
        return
    made = {
        node.targets[0].id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _makes_weights(node.value, names)
    }
    # Names within `shards(...)` were rewritten before: the program is scanned again after each turn of edits.
    done = {id(part) for node in ast.walk(source.tree) if _is_shards(node) for part in ast.walk(node)}
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute) or node.attr != "weights" or not isinstance(node.value, ast.Name):
            continue
        if node.value.id not in made or not isinstance(node.ctx, ast.Load) or id(node) in done:
            continue
        text = f"shards({source.of(node)})"
        advice = f"a layer's variable is one here, however the servers split it: write {text}"
        place = (node.lineno, node.col_offset + 1, "weights of Keras with a variable_partitioner")
        yield Finding(*place, Kind.RENAMED, advice, (source.replace(node, text),))


def _splits(node: ast.AST, names: Names) -> bool:
    """True if a node makes a strategy of parameter servers that splits variables."""
    if not isinstance(node, ast.Call) or not _strategy_made(node, names).endswith(".ParameterServerStrategy"):
        return False
    # The partitioner is the strategy's second argument.
    return len(node.args) > 1 or any(one.arg == "variable_partitioner" for one in node.keywords)


def _makes_weights(node: ast.expr, names: Names) -> bool:
    name = (names.of(node.func) or "") if isinstance(node, ast.Call) else ""
    return name.startswith(("tf.keras.layers.", "tf.keras.models.")) or name in (
        "tf.keras.Model",
        "tf.keras.Sequential",
    )


def _is_shards(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "shards"


def _strategy_made(node: ast.AST, names: Names) -> str:
    """The class of strategy that a call makes; empty for any other node."""
    name = (names.of(node.func) or "") if isinstance(node, ast.Call) else ""
    return name if name.endswith("Strategy") and name.startswith(("tf.distribute.", "tf.compat.v1.")) else ""
