"""Finds the code that AutoGraph would rewrite: control flow over arrays and datasets in compiled functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.findings import Finding, Source, keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

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
    for function in nodes(tree, ast.FunctionDef):
        if _is_compiled(function, names):
            arguments = {argument.arg for argument in nodes(function.args, ast.arg)}
            for node in ast.walk(function):
                what = _what(node, names, arguments)
                if what and isinstance(node, (ast.stmt, ast.expr)):
                    name = f"{what} in tf.function"
                    kind = Kind.SAME if what in _AS_IN_TENSORFLOW else Kind.DIFFERENT
                    yield Finding(node.lineno, node.col_offset + 1, name, kind, _ADVICE[what])


def _is_compiled(function: ast.FunctionDef, names: Names) -> bool:
    for decorator in function.decorator_list:
        # With arguments, as in `@tf.function(jit_compile=True)`, it is a call.
        if names.of(decorator.func if isinstance(decorator, ast.Call) else decorator) == "tf.function":
            return True
    return False


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
        for call in nodes(node.test, ast.Call):
            if names.called_by(call).startswith(_CONDITIONS):
                return type(node).__name__.lower()
        return ""
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
    made = {_strategy_made(call, names) for call in nodes(source.tree, ast.Call)} - {""}
    if not any(name.endswith(".ParameterServerStrategy") for name in made):
        return
    for node in nodes(source.tree, ast.Call):
        if not isinstance(node.func, ast.Attribute) or not node.args:
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
    calls = list(nodes(source.tree, ast.Call))
    if not any(_splits(call, names) for call in calls):
        return
    made: set[str] = set()
    for node in nodes(source.tree, ast.Assign):
        if isinstance(node.targets[0], ast.Name) and _makes_weights(node.value, names):
            made.add(node.targets[0].id)
    # Names within `shards(...)` were rewritten before: the program is scanned again after each turn of edits.
    done: set[ast.AST] = set()
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id == "shards":
            done.update(ast.walk(call))
    for node in nodes(source.tree, ast.Attribute):
        if node.attr != "weights" or not isinstance(node.value, ast.Name):
            continue
        if node.value.id not in made or not isinstance(node.ctx, ast.Load) or node in done:
            continue
        text = f"shards({source.of(node)})"
        advice = f"a layer's variable is one here, however the servers split it: write {text}"
        place = (node.lineno, node.col_offset + 1, "weights of Keras with a variable_partitioner")
        yield Finding(*place, Kind.RENAMED, advice, (source.replace(node, text),))


def _splits(call: ast.Call, names: Names) -> bool:
    """True if a call makes a strategy of parameter servers that splits variables."""
    if not _strategy_made(call, names).endswith(".ParameterServerStrategy"):
        return False
    # The partitioner is the strategy's second argument.
    return len(call.args) > 1 or keyword(call, "variable_partitioner") is not None


def _makes_weights(node: ast.expr, names: Names) -> bool:
    name = names.called_by(node)
    return name.startswith(("tf.keras.layers.", "tf.keras.models.")) or name in (
        "tf.keras.Model",
        "tf.keras.Sequential",
    )


def _strategy_made(call: ast.Call, names: Names) -> str:
    """The class of strategy that a call makes; empty for any other call."""
    name = names.called_by(call)
    return name if name.endswith("Strategy") and name.startswith(("tf.distribute.", "tf.compat.v1.")) else ""
