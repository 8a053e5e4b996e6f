"""Shapes and types: TensorFlow's are objects with methods, and here tuples and types of NumPy."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.catalog.members import absent_from
from jaxtribute._src.addons.compat.migrate.findings import Edit, Finding, Source, nodes

_SHAPES = ("shape", "output_shape", "input_shape")
_WRAPPED = {
    "rank": ("len(", ""),
    "ndims": ("len(", ""),
    "as_list": ("list(", "()"),
    "num_elements": ("int(np.prod(", "()"),
}
"""Members of a shape: what is written around it, and how the member ends."""
_WHOLE = "is_fully_defined"
_TYPES = absent_from("tf.DType")


def find(source: Source) -> Iterator[Finding]:
    """Uses of members of shapes and types that tuples and NumPy's types do not have."""
    calls = {id(call.func): call for call in nodes(source.tree, ast.Call)}
    for node in nodes(source.tree, ast.Attribute):
        call = calls.get(id(node))
        bare = call is not None and not call.args and not call.keywords
        place = (node.end_lineno or 0, (node.end_col_offset or 0) - len(node.attr) + 1)
        if node.attr == "get_shape" and call is not None and bare:
            _, end = source.span(node)
            edits = (Edit(end - len(node.attr), source.span(call)[1], "shape"),)
            yield Finding(*place, ".get_shape()", Kind.RENAMED, "shapes are tuples: write .shape", edits)
        elif node.attr in _TYPES and _is_type(node.value):
            yield Finding(*place, f".{node.attr}", Kind.ABSENT, _TYPES[node.attr])
        elif not _is_shape(node.value):
            continue
        elif node.attr == _WHOLE:
            advice = "shapes are tuples, of which all lengths are known: write True"
            yield Finding(*place, f".{node.attr}()", Kind.ABSENT, advice)
        elif node.attr in _WRAPPED:
            start, ending = _WRAPPED[node.attr]
            whole = call if ending else node
            if whole is not None and (bare or not ending):
                text = f"{start}{source.of(node.value)}{')' * start.count('(')}"
                edits = source.wrap(whole, node.value, start)
                yield Finding(*place, f".{node.attr}{ending}", Kind.RENAMED, f"shapes are tuples: write {text}", edits)
    yield from _comparisons(source)


def _comparisons(source: Source) -> Iterator[Finding]:
    """Comparisons of a shape with a list, to which a tuple is never equal."""
    for node in nodes(source.tree, ast.Compare):
        sides = [node.left, *node.comparators]
        if not all(isinstance(one, (ast.Eq, ast.NotEq)) for one in node.ops) or not any(map(_is_shape, sides)):
            continue
        for side in sides:
            if isinstance(side, ast.List):
                start, end = source.span(side)
                alone = len(side.elts) == 1 and not source.of(side)[:-1].rstrip().endswith(",")
                closing = ",)" if alone else ")"
                edits = (Edit(start, start + 1, "("), Edit(end - 1, end, closing))
                advice = "shapes are tuples, and never equal to a list: write a tuple"
                yield Finding(side.lineno, side.col_offset + 1, "[...]", Kind.RENAMED, advice, edits)


def _is_shape(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "get_shape"
    return isinstance(node, ast.Attribute) and node.attr in _SHAPES


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "dtype"
