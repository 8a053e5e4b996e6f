"""The names of `tf.keras`, read from the files of the Keras that is installed, which is not imported."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_PRIVATE = ("src", "_tf_keras")
_LEGACY = "tf.keras.optimizers.legacy"
ABSENT = "Keras 3 has no such name"


# All files are read and parsed, and what is installed stays the same while a program runs.
@cache
def keras_names() -> dict[str, bool]:
    """The public names by their full ones in TensorFlow, each with True if it is a module; empty without Keras."""
    spec = find_spec("keras")
    if spec is None or not spec.submodule_search_locations:
        return {}
    root = Path(spec.submodule_search_locations[0])
    # Keras generates these files, of import lines alone. The first tree is TensorFlow's, with its older names; a few
    # modules are only in the other.
    found = _names_below(root / "_tf_keras" / "keras")
    for name, module in _names_below(root).items():
        top = ".".join(name.split(".")[:3])
        # Within a module that both trees have, the first one says what TensorFlow had.
        if top == name or top not in found:
            found.setdefault(name, module)
    return found


def _names_below(root: Path) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for file in sorted(root.rglob("__init__.py")):
        parts = file.parent.relative_to(root).parts
        # `src` is Keras's own code, and `_tf_keras` the other tree, which is read by itself.
        if parts[:1] and parts[0] in _PRIVATE:
            continue
        module = ".".join(("tf.keras", *parts))
        found[module] = True
        for node in ast.parse(file.read_text()).body:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                found.setdefault(f"{module}.{alias.asname or alias.name}", False)
    return found


def keras_problem(name: str) -> str:
    """Reason why a full name below `tf.keras` does not exist, and a similar name that does; empty if it exists.

    Names are believed where Keras is not installed, as are the members of its classes.
    """
    known = keras_names()
    # Without Keras nothing is known of its names, so that none is refused.
    if not known:
        return ""
    if name.startswith(f"{_LEGACY}."):
        return f"it raises an error in Keras 3: write tf.keras.optimizers{name.removeprefix(_LEGACY)}"
    path, *rest = "tf.keras", *name.split(".")[2:]
    for part in rest:
        if not known.get(path, False):
            return ""  # a member of a class
        path = f"{path}.{part}"
        if path not in known:
            last = name.rpartition(".")[2]
            others = sorted(other for other in known if other.endswith(f".{last}") and known.get(other) is False)
            # The shortest: Keras exports the same object at several places.
            also = min((other for other in others if ".legacy" not in other), key=len, default="")
            return f"{ABSENT}: write {also}" if also else ABSENT
    return ""
