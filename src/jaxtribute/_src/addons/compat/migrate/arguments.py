"""Arguments that functions of TensorFlow take, and those of `compat.tf` do not: asked of their signatures."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from types import FunctionType

from jaxtribute._src.addons.compat.catalog.lookup import Kind, entry_of, in_keras, resolve
from jaxtribute._src.addons.compat.migrate.findings import Edit, Finding, Source, assigned, keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

_PLACES = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def find(source: Source, names: Names) -> Iterator[Finding]:
    """Calls by name with arguments, or with values of theirs, that the function here does not have."""
    values = assigned(source.tree)
    for call in nodes(source.tree, ast.Call):
        name = names.of(call.func)
        # Keras's own functions are looked up in its files.
        if name is None or names.plain(call.func) or f"{in_keras(name)}.".startswith("tf.keras."):
            continue
        known = parameters(name)
        if known is not None:
            yield from _unknown(source, call, name, known)
            yield from _beyond(call, name, known)
            yield from _values(call, name, known, values)
        if name == "tf.while_loop":
            yield from _growing(call, values)
    for function in nodes(source.tree, ast.FunctionDef):
        if any(names.of(one) == "tf.custom_gradient" for one in function.decorator_list):
            yield from _of_variables(function)


def _growing(call: ast.Call, values: dict[str, ast.expr]) -> Iterator[Finding]:
    """Shapes that a loop may change, which are accepted, and change nothing."""
    given = keyword(call, "shape_invariants") or next(iter(call.args[3:4]), None)
    shapes = values.get(given.id, given) if isinstance(given, ast.Name) else given
    if shapes is None or isinstance(shapes, ast.Constant):
        return
    # A name of unknown make may stand for any shape.
    if isinstance(shapes, ast.Name) or any(one.value is None for one in nodes(shapes, ast.Constant)):
        advice = (
            "arrays keep their shapes in a loop: carry one of full length, and write `x.at[i].set(value)` in place of "
            "a tf.concat"
        )
        yield Finding(shapes.lineno, shapes.col_offset + 1, "shapes of tf.while_loop", Kind.DIFFERENT, advice)


def _of_variables(function: ast.FunctionDef) -> Iterator[Finding]:
    """Gradients of `tf.custom_gradient` that want variables, which are arguments here."""
    for inner in nodes(function, ast.FunctionDef):
        for one in (*inner.args.args, *inner.args.kwonlyargs):
            if inner is not function and one.arg == "variables":
                advice = (
                    f"variables are arguments here: write {function.name}(x, variable), and return a gradient for each "
                    "argument"
                )
                yield Finding(one.lineno, one.col_offset + 1, "tf.custom_gradient(variables)", Kind.DIFFERENT, advice)


@cache
def parameters(name: str) -> Mapping[str, inspect.Parameter] | None:
    """The parameters by which a function or class is called, in their order; None if there is none, or none to ask.

    Args:
      name: TensorFlow's full name, such as `tf.data.Dataset.map`: a method is that of an object.
    """
    entry = entry_of(name)
    if not entry.here:
        return None
    here = entry.here + name.removeprefix(entry.name)  # a member that the catalogue does not list
    owner, _, last = here.rpartition(".")
    try:
        found = resolve(here)
        above = resolve(owner) if "." in owner else None
        known = list(inspect.signature(found).parameters.values())
    except (AttributeError, ImportError, TypeError, ValueError):  # a library's that is not there, or no function
        return None
    member = inspect.getattr_static(above, last, None) if inspect.isclass(above) else None
    if member is not None and not isinstance(member, (FunctionType, staticmethod, classmethod, type)):
        return None  # what an object has by that name, such as a property, is not called with these
    return {one.name: one for one in (known[1:] if isinstance(member, FunctionType) else known)}


def _unknown(source: Source, call: ast.Call, name: str, known: Mapping[str, inspect.Parameter]) -> Iterator[Finding]:
    """Arguments by keyword that there are not."""
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values()):
        return
    for given in call.keywords:
        one = known.get(given.arg or "")
        if given.arg is None or (one is not None and one.kind is not inspect.Parameter.POSITIONAL_ONLY):
            continue
        place = (given.lineno, given.col_offset + 1, f"{name}({given.arg}=)")
        if given.arg == "name":
            edits = (_without(source, call, given),)
            yield Finding(*place, Kind.RENAMED, "operations have no names here: leave it out", edits)
        else:
            has = ", ".join(known) or "none"
            advice = f"the function here has no such argument: write it with those that it has ({has}), or in jax.numpy"
            yield Finding(*place, Kind.ABSENT, advice)


def _without(source: Source, call: ast.Call, given: ast.keyword) -> Edit:
    """The edit that takes an argument out of a call."""
    start = source.place(given.lineno, given.col_offset)
    end = source.span(given.value)[1]
    before = [source.span(one)[1] for one in (*call.args, *(one.value for one in call.keywords))]
    behind = [source.place(one.lineno, one.col_offset) for one in (*call.args, *call.keywords)]
    last = max((one for one in before if one < start), default=None)
    # With the comma before it; the first argument goes with the one behind.
    return (
        Edit(start, min((one for one in behind if one > start), default=end), "")
        if last is None
        else Edit(last, end, "")
    )


def _beyond(call: ast.Call, name: str, known: Mapping[str, inspect.Parameter]) -> Iterator[Finding]:
    """More arguments by place than there are."""
    kinds = {one.kind for one in known.values()}
    places = [one for one in known.values() if one.kind in _PLACES]
    if inspect.Parameter.VAR_POSITIONAL in kinds or any(isinstance(one, ast.Starred) for one in call.args):
        return
    for given in call.args[len(places) : len(places) + 1]:
        has = ", ".join(one.name for one in places) or "none"
        advice = f"the function here takes {len(places)} arguments by place ({has}), and this is one more"
        yield Finding(given.lineno, given.col_offset + 1, f"{name}(...)", Kind.ABSENT, advice)


def _values(
    call: ast.Call, name: str, known: Mapping[str, inspect.Parameter], values: dict[str, ast.expr]
) -> Iterator[Finding]:
    """Values that are none of those which an argument may have."""
    places = [one for one in known.values() if one.kind in _PLACES]
    by_place = [] if any(isinstance(one, ast.Starred) for one in call.args) else call.args
    given = [(one.name, value) for one, value in zip(places, by_place, strict=False)]
    given += [(one.arg, one.value) for one in call.keywords if one.arg is not None]
    for argument, node in given:
        choices = _choices(known[argument].annotation) if argument in known else None
        value = values.get(node.id, node) if isinstance(node, ast.Name) else node
        if choices is None or not isinstance(value, ast.Constant) or value.value in choices:
            continue
        has = ", ".join(repr(one) for one in choices if one not in ("", None))
        advice = f"it is not here: write one of {has}, or use another library"
        yield Finding(node.lineno, node.col_offset + 1, f"{name}({argument}={value.value!r})", Kind.ABSENT, advice)


def _choices(annotation: object) -> list[object] | None:
    """The values that an annotation `Literal[...]` allows, or with None beside it; None for any other annotation."""
    tree = ast.parse(annotation, mode="eval").body if isinstance(annotation, str) else None
    parts = [tree.left, tree.right] if isinstance(tree, ast.BinOp) else [tree]
    found: list[object] = []
    for part in parts:
        if isinstance(part, ast.Constant) and part.value is None:
            found.append(None)
        elif isinstance(part, ast.Subscript) and ast.unparse(part.value) == "Literal":
            found += (
                ast.literal_eval(part.slice) if isinstance(part.slice, ast.Tuple) else [ast.literal_eval(part.slice)]
            )
        else:
            return None
    return found
