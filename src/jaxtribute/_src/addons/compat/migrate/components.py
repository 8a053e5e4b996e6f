"""Components of a distributed value in Python's operators: each lies on its replica's device, and JAX copies none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.findings import Finding, assigned, nodes

_LOCAL = "experimental_local_results"
_ADVICE = (
    "each component lies on its replica's device, and JAX's operators do not put them together: write tf.add_n of the "
    "list, np.asarray of each, or strategy.gather"
)


def find(tree: ast.Module) -> Iterator[Finding]:
    """Sums of a distributed value's components, and operators between two of them."""
    values = assigned(tree)
    for call in nodes(tree, ast.Call):
        if ast.unparse(call.func) == "sum" and len(call.args) == 1 and _are_components(call.args[0], values):
            yield _finding(call)
    for operation in nodes(tree, ast.BinOp):
        both = (operation.left, operation.right)
        if all(isinstance(one, ast.Subscript) and _are_components(one.value, values) for one in both):
            yield _finding(operation)


def _finding(node: ast.expr) -> Finding:
    return Finding(node.lineno, node.col_offset + 1, ast.unparse(node), Kind.DIFFERENT, _ADVICE)


def _are_components(node: ast.expr, values: dict[str, ast.expr]) -> bool:
    """True for `x.values`, and for what `experimental_local_results` returns."""
    node = values.get(node.id, node) if isinstance(node, ast.Name) else node
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == _LOCAL
    return isinstance(node, ast.Attribute) and node.attr == "values"
