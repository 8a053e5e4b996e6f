"""Uses of TensorFlow that stand in texts: modules that are imported by name, code in strings, names of devices."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind, entry_of
from jaxtribute._src.addons.compat.migrate.findings import Finding, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

_IMPORTS = ("import_module", "__import__", "find_spec", "importorskip", "LazyLoader", "try_import")
_CODE = re.compile(r"\b(?:import|from)\s+(?:tensorflow|keras)\b")
# `/gpu:0`, `GPU:*`, `/job:worker/replica:0/task:0/device:TPU:1`.
_DEVICE = re.compile(r"(?:/job:\S*)?/?(?:device:)?(?P<kind>gpu|tpu):(?:\d+|\*)", re.IGNORECASE)


def find(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Texts that name TensorFlow or its devices."""
    texts = {id(node.value) for node in nodes(tree, ast.Expr)}
    for call in nodes(tree, ast.Call):
        yield from _imported(call)
        yield from _looked_up(call, names)
    for node in nodes(tree, ast.Constant):
        # A text that stands alone describes; everything else may be run.
        if not isinstance(node.value, str) or id(node) in texts:
            continue
        place = (node.lineno, node.col_offset + 1)
        if _CODE.search(node.value):
            yield Finding(
                *place, "code in a text", Kind.DIFFERENT, "it is not read, and imports TensorFlow: look at it"
            )
        elif device := _DEVICE.fullmatch(node.value):
            kind = device["kind"].upper()
            advice = (
                "there is no soft placement: without such a device it is an error. Leave devices to the strategy, or "
                f'let others stand for it, jd.config.alias_devices({{"{kind}:0": "CPU:0"}})'
            )
            yield Finding(*place, node.value, Kind.DIFFERENT, advice)


def _imported(call: ast.Call) -> Iterator[Finding]:
    """Modules of TensorFlow that are imported by their names: `importlib.import_module("tensorflow")`."""
    if ast.unparse(call.func).rpartition(".")[2] not in _IMPORTS:
        return
    for given in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(given, ast.Constant) and str(given.value).partition(".")[0] in ("tensorflow", "keras"):
            advice = (
                f"what comes of it is not followed: write import jaxtribute.compat.tf, and look at it ({given.value})"
            )
            yield Finding(call.lineno, call.col_offset + 1, "import by name", Kind.DIFFERENT, advice)


def _looked_up(call: ast.Call, names: Names) -> Iterator[Finding]:
    """Names of TensorFlow that are looked up: `getattr(tf.keras.optimizers, name)`."""
    if not isinstance(call.func, ast.Name) or call.func.id not in ("getattr", "hasattr") or len(call.args) < 2:
        return
    base, name = names.of(call.args[0]), call.args[1]
    if base is None or not base.startswith("tf"):
        return
    place = (call.lineno, call.col_offset + 1)
    if not isinstance(name, ast.Constant):
        yield Finding(*place, f"{base}.(...)", Kind.DIFFERENT, "which name it is cannot be read: look at it")
        return
    entry = entry_of(f"{base}.{name.value}")
    if entry.kind is not Kind.SAME:
        yield Finding(*place, entry.name, entry.kind, entry.note)
