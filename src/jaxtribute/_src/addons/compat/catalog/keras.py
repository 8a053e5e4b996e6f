"""The names of `tf.keras`, read from the files of the Keras that is installed, which is not imported."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from jaxtribute._src.addons.compat.catalog import keras2
from jaxtribute._src.addons.compat.catalog.others import NEEDS_TENSORFLOW, OWN

_PRIVATE = ("src", "_tf_keras")
_LEGACY = "tf.keras.optimizers.legacy"
_BACKEND = "tf.keras.backend."
_NEEDS = "it needs TensorFlow"
ABSENT = "Keras 3 has no such name"


# All files are read and parsed, and what is installed stays the same while a program runs.
@cache
def keras_names(*, plain: bool = False) -> dict[str, bool]:
    """The public names by their full ones in TensorFlow, each with True if it is a module; empty without Keras.

    Args:
      plain: of the package `keras` alone, without the older names that `tf.keras` has as well.
    """
    root = _root()
    if root is None:
        return {}
    if plain:
        return {name: where is None for name, where in _names_below(root).items()}
    return {name: where is None for name, where in _homes().items()}


@cache
def _homes() -> dict[str, Path | None]:
    """The names of `tf.keras`, each with the file that defines it, and None for modules."""
    root = _root()
    assert root is not None
    # Keras generates these files, of import lines alone. The first tree is TensorFlow's, with its older names; a few
    # modules are only in the other.
    found = _names_below(root / "_tf_keras" / "keras")
    for name, where in _names_below(root).items():
        top = ".".join(name.split(".")[:3])
        # Within a module that both trees have, the first one says what TensorFlow had.
        if top == name or top not in found:
            found.setdefault(name, where)
    return found


def _root() -> Path | None:
    spec = find_spec("keras")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _names_below(root: Path) -> dict[str, Path | None]:
    found: dict[str, Path | None] = {}
    for file in sorted(root.rglob("__init__.py")):
        parts = file.parent.relative_to(root).parts
        # `src` is Keras's own code, and `_tf_keras` the other tree, which is read by itself.
        if parts[:1] and parts[0] in _PRIVATE:
            continue
        module = ".".join(("tf.keras", *parts))
        found[module] = None
        for node in ast.parse(file.read_text()).body:
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                name = f"{module}.{alias.asname or alias.name}"
                if name not in found:
                    found[name] = file_of(getattr(node, "module", "") or "")
    return found


def home_of(name: str) -> Path | None:
    """The file that defines a name of `tf.keras`; None for modules, and for names that Keras has not."""
    return _homes().get(name) if _root() else None


def file_of(module: str) -> Path:
    """The file of a module of Keras that is installed."""
    root = _root()
    assert root is not None
    path = root.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def keras_problem(name: str, *, plain: bool = False) -> str:
    """Reason why a full name below `tf.keras` is of no use here, and what to write; empty if it works.

    Names are believed where Keras is not installed, as are the members of its classes.

    Args:
      name: the name.
      plain: True if the program takes it from the package `keras`, which has less names than `tf.keras`.
    """
    known = keras_names(plain=plain)
    # Without Keras nothing is known of its names, so that none is refused.
    if not known:
        return ""
    if plain and name in OWN:
        return f"{_NEEDS}: write {OWN[name]}"
    for other, advice in NEEDS_TENSORFLOW.items():
        if f"{name}.".startswith(f"{other}."):
            return advice
    if name.startswith(f"{_LEGACY}."):
        return f"it raises an error in Keras 3: write tf.keras.optimizers{name.removeprefix(_LEGACY)}"
    path, *rest = "tf.keras", *name.split(".")[2:]
    for part in rest:
        if not known.get(path, False):
            break  # a member of a class
        path = f"{path}.{part}"
        if path not in known:
            return _absent(name)
    problem, last = _calls_tensorflow(path), path.rpartition(".")[2]
    known_instead = problem and path.startswith(_BACKEND) and last in keras2.BACKEND
    return f"{_NEEDS}: write {keras2.BACKEND[last]}" if known_instead else problem


def _absent(name: str) -> str:
    last = name.rpartition(".")[2]
    if name.startswith(_BACKEND) and last in keras2.BACKEND:
        return f"{ABSENT}: write {keras2.BACKEND[last]}"
    others: list[str] = []
    for other, module in keras_names().items():
        if other.endswith(f".{last}") and not module and ".legacy" not in other and not _calls_tensorflow(other):
            others.append(other)
    # The shortest: Keras exports the same object at several places.
    also = min(sorted(others), key=len, default="")
    if not also:
        return ABSENT
    return NEEDS_TENSORFLOW.get(also) or f"{ABSENT}: write {also}"


@cache
def _calls_tensorflow(name: str) -> str:
    """Advice for a name that Keras 3 keeps for programs of TensorFlow, and that needs TensorFlow; empty for others."""
    home = _homes().get(name)
    last = name.rpartition(".")[2]
    if home is None or "legacy" not in home.parts or last not in _of_tensorflow(home):
        return ""
    if last in keras2.BACKEND:
        return f"{_NEEDS}: write {keras2.BACKEND[last]}"
    for part in ("ops", "layers", "random", "activations"):
        if _works(f"tf.keras.{part}.{last}"):
            return f"{_NEEDS}: write tf.keras.{part}.{last}"
    return f"{_NEEDS}: write it with tf.keras.ops"


def _works(name: str) -> bool:
    home = _homes().get(name)
    return home is not None and "legacy" not in home.parts


@cache
def _of_tensorflow(file: Path) -> frozenset[str]:
    """The functions and classes of a file of Keras that call TensorFlow."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            # Some call others of this file, which stand above them.
            if "tf" in used or used & found:
                found.add(node.name)
    return frozenset(found)
