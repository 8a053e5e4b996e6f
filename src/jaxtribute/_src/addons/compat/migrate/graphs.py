"""Finds the code that AutoGraph would rewrite: loops over datasets, reads and late variables in compiled functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from operator import attrgetter

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.arrays import is_dataset
from jaxtribute._src.addons.compat.migrate.calls import Function, Functions
from jaxtribute._src.addons.compat.migrate.findings import Edit, Finding, Source, keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

_ADVICE = {
    "for tf.range": "the loop runs while the function is traced, and each turn is compiled; its length must be a "
    "number of Python, not a tensor: keep it short, use tf.while_loop, or loop outside",
    "for dataset": "a loop that is traced cannot read elements: pass the dataset as an argument, loop outside, or pass "
    "iter(dataset) and call next",
    "for dataset argument": "called with a dataset the function runs as Python, and what strategy.run calls in it is "
    "compiled; jd.function refuses datasets",
    "get_next_as_optional": "an element can only be read from an iterator that is an argument of the function: pass it",
    "next": "an element can only be read from an iterator that is an argument of the function: pass it",
}
_MODELS = ("tf.keras.Model", "tf.keras.models.Model")
_INPUTS = ("tf.keras.Input", "tf.keras.layers.Input", "tf.keras.layers.InputLayer")
_PLAIN_MODELS = ("tf.keras.Sequential", "tf.keras.models.Sequential")
_AS_IN_TENSORFLOW = ("for dataset argument",)


def find(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Loops and reads in functions under `@tf.function` that work otherwise here, as far as one can see."""
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
        if not is_dataset(over, names):
            return ""
        # By its name: what an argument is cannot be seen in the text, and an iterator works differently.
        given = isinstance(over, ast.Name) and over.id in arguments and "iterator" not in over.id
        return "for dataset argument" if given else "for dataset"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_next_as_optional":
        source = node.func.value
        return "get_next_as_optional" if isinstance(source, ast.Name) and source.id not in arguments else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next" and node.args:
        source = node.args[0]
        return "next" if isinstance(source, ast.Name) and source.id not in arguments else ""
    return ""


def find_ranges(source: Source, names: Names) -> Iterator[Finding]:
    """Tensors that are passed to a compiled function as the number of turns of a loop over `tf.range`."""
    functions = Functions(source.tree, names)
    counts = {function: _lengths(function, functions, names) for function in functions.compiled()}
    for place in functions.places if any(counts.values()) else ():
        for function, given in functions.calls(place):
            for name in sorted(counts.get(function, set[str]()) & given.keys()):
                value = given[name]
                if value is not None:
                    yield from _range(source, names, name, value)


def _lengths(function: Function, functions: Functions, names: Names) -> set[str]:
    """The arguments of a function that say how often one of its loops over `tf.range` turns."""
    arguments = {one.arg for one in nodes(function.args, ast.arg)}
    loops = [one.iter for one in functions.own(function) if isinstance(one, ast.For)]
    over = [one for one in loops if names.called_by(one) == "tf.range"]
    return {name.id for one in over for name in nodes(one, ast.Name) if name.id in arguments}


def _range(source: Source, names: Names, name: str, value: ast.expr) -> Iterator[Finding]:
    place = (value.lineno, value.col_offset + 1, "tensor passed to tf.range")
    if isinstance(value, ast.Call) and value.args and names.of(value.func) in ("tf.convert_to_tensor", "tf.constant"):
        text = source.of(value.args[0])
        advice = f"the loop over tf.range({name}) is traced, so its length must be Python's number: write {text}"
        yield Finding(*place, Kind.RENAMED, advice, (source.replace(value, text),))


def find_late_variables(source: Source, names: Names) -> Iterator[Finding]:
    """Variables that functions make the first time that they are called, which may be while they are traced."""
    branches = [one for function in nodes(source.tree, ast.FunctionDef) for one in nodes(function, ast.If)]
    made = {id(call): call for branch in branches for call in nodes(branch, ast.Call)}
    for call in made.values():
        initial = call.args[0] if call.args else keyword(call, "initial_value")
        computed = isinstance(initial, (ast.Call, ast.BinOp, ast.UnaryOp)) and any(nodes(initial, ast.Call))
        if names.called_by(call) != "tf.Variable" or initial is None or not computed:
            continue
        start, _ = source.span(initial)
        advice = "what a function that is traced computes has no value yet: a function gives the initial value"
        place = (initial.lineno, initial.col_offset + 1, "tf.Variable in a function")
        yield Finding(*place, Kind.RENAMED, advice, (Edit(start, start, "lambda: "),))


def find_texts(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Inputs of Keras models that take strings."""
    for call in nodes(tree, ast.Call):
        kind = keyword(call, "dtype")
        if names.called_by(call) not in _INPUTS or kind is None:
            continue
        if names.of(kind) == "tf.string" or (isinstance(kind, ast.Constant) and kind.value == "string"):
            advice = (
                "JAX has no strings: call the lookup, or TextVectorization, in the dataset's map, and begin the model "
                "with the numbers that it gives"
            )
            yield Finding(call.lineno, call.col_offset + 1, "Input of strings", Kind.ABSENT, advice)


def find_unbuilt(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Keras models that have no variables before their first call, in programs that ask for those by a tape."""
    calls = [*nodes(tree, ast.Call)]
    asks = ("tf.GradientTape", "jd.value_and_grad")
    if not any(names.called_by(call) == asks[0] or ast.unparse(call.func) == asks[1] for call in calls):
        return
    built = {
        ast.unparse(call.func.value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "build"
    }
    for node in nodes(tree, ast.Assign):
        call, target = node.value, ast.unparse(node.targets[0])
        if names.called_by(call) not in _PLAIN_MODELS or target in built:
            continue
        assert isinstance(call, ast.Call)
        first = _first_layer(call, target, calls)
        if first is None or _says_input(first, names):
            continue
        advice = (
            "without an Input it has no variables before its first call, and jd.value_and_grad finds none: put "
            "tf.keras.Input((...,)) before its first layer, the shape without the batch"
        )
        yield Finding(call.lineno, call.col_offset + 1, "Sequential without Input", Kind.DIFFERENT, advice)
    yield from _unbuilt_classes(tree, names, built)


def _first_layer(call: ast.Call, target: str, calls: Sequence[ast.Call]) -> ast.expr | None:
    layers = call.args[0] if call.args else keyword(call, "layers")
    if isinstance(layers, (ast.List, ast.Tuple)) and layers.elts:
        return layers.elts[0]
    added = [one for one in calls if ast.unparse(one.func) == f"{target}.add" and one.args and one.lineno > call.lineno]
    return min(added, key=attrgetter("lineno")).args[0] if added and layers is None else None


def _says_input(layer: ast.expr, names: Names) -> bool:
    """True if a first layer says what shape it takes, or cannot be read."""
    if not isinstance(layer, ast.Call):
        return True
    given = {one.arg for one in layer.keywords}
    return names.called_by(layer).rpartition(".")[2] in ("Input", "InputLayer") or bool(
        given & {"input_shape", "input_dim", "batch_input_shape", "batch_shape"}
    )


def _unbuilt_classes(tree: ast.Module, names: Names, built: set[str]) -> Iterator[Finding]:
    models = {
        one.name: one for one in nodes(tree, ast.ClassDef) if any(names.of(base) in _MODELS for base in one.bases)
    }
    classes = {name for name, one in models.items() if not _of_built_parts(one, names)}
    # What a model is made of is built with it.
    parts = {id(call) for one in models.values() for call in nodes(one, ast.Call)}
    holders = {id(value): target for target, value in _assigned(tree)}
    used = {_last(one.func) for one in nodes(tree, ast.Call)} | {
        _last(one.value) for one in nodes(tree, ast.Attribute) if one.attr.startswith("trainable_")
    }
    early = _called_early(tree, names)
    # A class without a `build` of its own is only marked as built.
    with_build = {
        name for name, one in models.items() if any(part.name == "build" for part in nodes(one, ast.FunctionDef))
    }
    for call in nodes(tree, ast.Call):
        if ast.unparse(call.func) not in classes or id(call) in parts:
            continue
        target = holders.get(id(call))
        # One that is returned or passed on has a name elsewhere.
        if target is not None and (_last(target) in early or _last(target) not in used):
            continue
        if target is not None and ast.unparse(target) in built and ast.unparse(call.func) in with_build:
            continue
        advice = (
            "a model of a class has no variables before its first call, and jd.value_and_grad finds none: write "
            f"{ast.unparse(target or call.func)}(tf.zeros((1, ...))) after this line, of the shape of a batch of one"
        )
        yield Finding(call.lineno, call.col_offset + 1, "model without variables", Kind.DIFFERENT, advice)


def _assigned(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and their values; those of `a, b = x, y` one by one."""
    for node in nodes(tree, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def _last(node: ast.expr) -> str:
    """The last part of a name, whatever object it is of."""
    return ast.unparse(node).rpartition(".")[2]


def _of_built_parts(model: ast.ClassDef, names: Names) -> bool:
    """True if all that a class of models makes of Keras's layers are `Sequential`s that begin with an Input."""
    found: list[bool] = []
    for node in nodes(model, ast.Assign):
        made = names.called_by(node.value)
        if not isinstance(node.value, ast.Call) or not made.startswith(("tf.keras.layers.", *_PLAIN_MODELS)):
            continue
        first = _first_layer(node.value, "", [])
        found.append(made.endswith("Sequential") and isinstance(first, ast.Call) and _says_input(first, names))
    return bool(found) and all(found)


def _called_early(tree: ast.Module, names: Names) -> set[str]:
    """The names that a statement which stands alone calls, or the script itself above all gradients."""
    asks = (
        call
        for call in nodes(tree, ast.Call)
        if names.called_by(call) == "tf.GradientTape" or _last(call.func) == "value_and_grad"
    )
    first = min(call.lineno for call in asks)
    alone = {id(one.value) for one in nodes(tree, ast.Expr)}
    within = {
        id(call)
        for kind in (ast.FunctionDef, ast.ClassDef, ast.Lambda)
        for one in nodes(tree, kind)
        for call in nodes(one, ast.Call)
    }
    return {
        _last(call.func)
        for call in nodes(tree, ast.Call)
        if id(call) in alone or (id(call) not in within and call.lineno < first)
    }


def find_fits(source: Source, names: Names) -> Iterator[Finding]:
    """Keras's `fit` and `evaluate` of a dataset in programs of parameter servers, whose workers make their own data."""
    made = {strategy_made(call, names) for call in nodes(source.tree, ast.Call)} - {""}
    if not any(name.endswith(".ParameterServerStrategy") for name in made):
        return
    for node in nodes(source.tree, ast.Call):
        if not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        given, method = node.args[0], node.func.attr
        if method not in ("fit", "evaluate") or not is_dataset(given, names):
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
    if not strategy_made(call, names).endswith(".ParameterServerStrategy"):
        return False
    # The partitioner is the strategy's second argument.
    return len(call.args) > 1 or keyword(call, "variable_partitioner") is not None


def _makes_weights(node: ast.expr, names: Names) -> bool:
    name = names.called_by(node)
    return name.startswith(("tf.keras.layers.", "tf.keras.models.")) or name in (
        "tf.keras.Model",
        "tf.keras.Sequential",
    )


def strategy_made(call: ast.Call, names: Names) -> str:
    """The class of strategy that a call makes; empty for any other call."""
    name = names.called_by(call)
    return name if name.endswith("Strategy") and name.startswith(("tf.distribute.", "tf.compat.v1.")) else ""


def find_written(source: Source, names: Names) -> Iterator[Finding]:
    """Variables of a scope that replicas may write, as TensorFlow's `tf.Variable` says no aggregation for them."""
    calls = list(nodes(source.tree, ast.Call))
    runs = any(isinstance(call.func, ast.Attribute) and call.func.attr == "run" for call in calls)
    made = {strategy_made(call, names).rpartition(".")[2] for call in calls}
    # Others keep one copy, or have rules of their own for writes.
    if not runs or made & {"ParameterServerStrategy", "CentralStorageStrategy"}:
        return
    for block in nodes(source.tree, ast.With):
        if not any(ast.unparse(item.context_expr).endswith(".scope()") for item in block.items):
            continue
        for call in nodes(block, ast.Call):
            given = {one.arg for one in call.keywords}
            if names.called_by(call) != "tf.Variable" or given & {"aggregation", "synchronization", "trainable"}:
                continue
            _, end = source.span(call)
            text = f'{"" if source.of(call)[:-1].rstrip().endswith(",") else ", "}aggregation="only_first_replica"'
            advice = f"replicas may write it, and it does not say whose value counts: write{text}"
            place = (call.lineno, call.col_offset + 1, "tf.Variable without aggregation")
            yield Finding(*place, Kind.RENAMED, advice, (Edit(end - 1, end - 1, text),))
