"""Files of Keras models, whose names end otherwise in Keras 3."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.catalog.others import ABSENT
from jaxtribute._src.addons.compat.migrate.findings import Edit, Finding, Source, assigned, keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

_CHECKPOINT = "tf.keras.callbacks.ModelCheckpoint"
_WHOLE = (".keras", ".h5", ".hdf5")
_WEIGHTS = (".weights.h5",)
_MODULES = ("tf.keras.models.", "tf.keras.saving.")
_FUNCTIONS = ("save_model", "load_model")
_METHODS = {"save": _WHOLE, "save_weights": _WEIGHTS, "load_weights": (*_WEIGHTS, *_WHOLE)}
"""Methods of models that write or read files, and how the files' names may end."""
_JOINS = ("join", "joinpath", "glob")


def find(source: Source, names: Names) -> Iterator[Finding]:
    """Calls that write or read files which Keras 3 refuses, or whose names cannot be read."""
    values = assigned(source.tree)
    for call in nodes(source.tree, ast.Call):
        method = call.func
        if isinstance(method, ast.Attribute) and method.attr == "export" and not names.of(method):
            if _is_model(method.value, names):
                yield Finding(call.lineno, call.col_offset + 1, ".export", Kind.ABSENT, ABSENT["tf.saved_model"])
            continue
        used = _use(call, names)
        if used is not None:
            yield from _file(source, used, values)


@dataclass(frozen=True, slots=True)
class _Use:
    """A file that a call writes or reads.

    Attributes:
      name: what is called.
      path: the expression of the file's name.
      ends: the ends that the name may have; the first one is advised.
      reads: True if the file is read.
    """

    name: str
    path: ast.expr
    ends: tuple[str, ...]
    reads: bool = False


def _use(call: ast.Call, names: Names) -> _Use | None:
    name = names.of(call.func) or ""
    path = keyword(call, "filepath") or (call.args[0] if call.args else None)
    if name == _CHECKPOINT:
        ends = _checkpoint_ends(call)
        return None if path is None or ends is None else _Use(f"file of {name}", path, ends)
    last = name.rpartition(".")[2]
    if name.startswith(_MODULES) and last in _FUNCTIONS:
        path = keyword(call, "filepath") or (call.args[-1] if last == "save_model" and call.args[1:] else path)
        return None if path is None else _Use(f"file of {name}", path, _WHOLE, last == "load_model")
    if name or not isinstance(call.func, ast.Attribute) or path is None:
        return None
    method = call.func.attr
    if method not in _METHODS or not _is_model(call.func.value, names):
        return None
    return _Use(f"file of .{method}", path, _METHODS[method], method.startswith("load"))


def _is_model(node: ast.expr, names: Names) -> bool:
    """True if an expression is a Keras model by what it was assigned, or by its name."""
    made = names.made_by(node)
    if made:
        return made.startswith("tf.keras.")
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if isinstance(node, ast.Call):
        last = ast.unparse(node.func).rpartition(".")[2]
    return "model" in last.lower()


def _file(source: Source, used: _Use, values: dict[str, ast.expr]) -> Iterator[Finding]:
    path = used.path
    # Followed eight names deep: two names that are assigned from each other would go round for ever.
    end = _end(path, values, 8)
    if end is not None and end.endswith(used.ends):
        return
    # A function of the program's own, such as one that gives each worker a folder, is taken to keep the name.
    made = values.get(path.id, path) if isinstance(path, ast.Name) else path
    parts = made.args if end is None and isinstance(made, ast.Call) else []
    if any((_end(one, values, 8) or "").endswith(used.ends) for one in parts):
        return
    place = (path.lineno, path.col_offset + 1, used.name)
    if isinstance(path, ast.Call) and path.args and ast.unparse(path.func).endswith("train.latest_checkpoint"):
        glob = f"tf.io.gfile.glob(os.path.join({source.of(path.args[0])}, '*{used.ends[0]}'))"
        text = f"max({glob}, key=os.path.getmtime)"
        yield Finding(
            *place, Kind.RENAMED, f"no such file is a checkpoint: write {text}", (source.replace(path, text),)
        )
        return
    if end is None or used.reads:
        others = f"a file that ends in {' or '.join(used.ends)}"
        why = "what it ends in cannot be read here" if end is None else "a folder of TensorFlow's cannot be read"
        yield Finding(*place, Kind.DIFFERENT, f"Keras 3 wants {others}: {why}")
        return
    start, stop = source.span(path)
    # Only behind these does a `+` surely add to the whole path: other expressions are left to the reader.
    simple = isinstance(path, (ast.Name, ast.Attribute, ast.Call, ast.Constant))
    # Behind a slash it would be a hidden file in a folder that nobody has made.
    folder = '.rstrip("/")' if end.endswith("/") else ""
    text = f'{source.of(path)}{folder} + "{used.ends[0]}"' if simple else ""
    edits = (Edit(start, stop, text),) if text else ()
    advice = f"Keras 3 wants a file that ends in {used.ends[0]}" + (f": write {text}" if text else "")
    yield Finding(*place, Kind.RENAMED, advice, edits)


def _checkpoint_ends(call: ast.Call) -> tuple[str, ...] | None:
    """The ends that the file of a `ModelCheckpoint` may have; None if that cannot be read."""
    given = keyword(call, "save_weights_only")
    if given is None:
        return (".keras",)
    return (_WEIGHTS if given.value else (".keras",)) if isinstance(given, ast.Constant) else None


def _end(node: ast.expr, values: dict[str, ast.expr], depth: int) -> str | None:
    """The last part of a path; None if it cannot be read."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name) and depth:
        return _end(values[node.id], values, depth - 1) if node.id in values else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _JOINS and node.args:
        return _end(node.args[-1], values, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _end(node.right, values, depth)
    if isinstance(node, ast.JoinedStr) and node.values:
        return _end(node.values[-1], values, depth)
    return None
