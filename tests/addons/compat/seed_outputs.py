"""What the documents state to be printed, and what is there, in one form that can be compared."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jaxtribute as jd
from jaxtribute._src.core.devices import device_name


def stated(text: str) -> Any:
    """The value that a printed text stands for: nests of tuples that begin with a word."""
    if text.startswith("/job:"):
        return text
    text = re.sub(r"<tf\.Tensor: shape=(.*?), dtype=(\w+), numpy=(.*?)>(?=$|[,} )\]])", r"tensor(\1, '\2', \3)", text)
    text = re.sub(
        r"<tf\.Variable '([^']*)' shape=(.*?) dtype=(\w+), numpy=(.*?)>", r"variable('\1', \2, '\3', \4)", text
    )
    text = re.sub(r"(?:PerReplica|MirroredVariable):\{", "components({", text).replace("}", "})")
    names = {
        "array": lambda value, dtype=None: value,
        "components": lambda parts: ("components", tuple(parts.values())),
        "int32": "int32",
        "tensor": lambda shape, dtype, value: ("tensor", shape, dtype, value),
        "variable": lambda name, shape, dtype, value: ("variable", name, shape, dtype, value),
    }
    return eval(text, {"__builtins__": {}}, names)


def shown(value: Any) -> Any:
    """The same form of what a block shows."""
    if isinstance(value, jd.Variable):
        parts = [_variable(value, number, part) for number, part in enumerate(value.values)]
        return ("components", tuple(parts)) if len(parts) > 1 else parts[0]
    if isinstance(value, jd.DistributedValues):
        return "components", tuple(shown(part) for part in value.values)
    if isinstance(value, jax.Array):
        return "tensor", value.shape, value.dtype.name, np.asarray(value).tolist()
    if isinstance(value, jax.Device):
        return device_name(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return type(value)(shown(part) for part in value)
    return value


def agree(said: Any, seen: Any) -> bool:
    """Whether a value is what was stated; a bare number or list is compared by value alone."""
    if isinstance(seen, tuple) and seen[:1] == ("tensor",) and not _is_word(said):
        return bool(np.array_equal(said, seen[3]))
    if isinstance(said, (list, tuple)) and isinstance(seen, (list, tuple)):
        return len(said) == len(seen) and all(agree(a, b) for a, b in zip(said, seen, strict=True))
    return bool(said == seen)


def _is_word(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) > 0 and value[0] in ("tensor", "components", "variable")


def _variable(variable: jd.Variable, number: int, part: Any) -> tuple[Any, ...]:
    name = variable.name if number == 0 else variable.name.replace(":0", f"/replica_{number}:0")
    return "variable", name, variable.shape, variable.dtype.name, np.asarray(part).tolist()
