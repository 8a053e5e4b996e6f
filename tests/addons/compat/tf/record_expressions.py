"""Evaluates the expressions beside this file with TensorFlow and writes what they give, as JSON.

The suite compares with it and never imports TensorFlow. Made with tensorflow-cpu 2.21 in an environment of its own:

    python tests/addons/compat/tf/record_expressions.py
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
from edges import EDGES  # pyright: ignore[reportMissingImports]
from expressions import EXPRESSIONS  # pyright: ignore[reportMissingImports]
from remedies import REMEDIES  # pyright: ignore[reportMissingImports]


def described(value: Any) -> Any:
    """A value as JSON: arrays as their type and their elements."""
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind == "c":  # as pairs of numbers
            return {"dtype": array.dtype.name, "values": np.stack([array.real, array.imag], -1).tolist()}
        return {"dtype": array.dtype.name, "values": json.loads(json.dumps(array.tolist()))}
    if isinstance(value, (list, tuple)):
        return [described(part) for part in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


def at_its_limits(text: str) -> Any:
    """The value that an expression has, with its shape, or "raises"."""
    try:
        value = eval(text, {"tf": tf, "np": np})
    except Exception:  # noqa: BLE001
        return "raises"
    if isinstance(value, (list, tuple)):
        return [shaped(part) for part in value]
    return shaped(value)


def shaped(value: Any) -> dict[str, Any]:
    array = np.asarray(value)
    if array.dtype.kind in "OS":
        texts = [described(bytes(one)) for one in array.ravel()]
        return {"dtype": "string", "shape": list(array.shape), "values": texts}
    return {"shape": list(array.shape), **described(array)}


def remedied(name: str, given: dict[str, str]) -> Any:
    """What the function of that name gives for arguments that are given as texts."""
    values = {argument: eval(text, {"tf": tf, "np": np}) for argument, text in given.items()}
    result = eval(name, {"tf": tf})(**values)
    return described(list(result) if isinstance(result, tf.TensorShape) else result)


def main() -> None:
    table: dict[str, Any] = {}
    for text in EXPRESSIONS:
        try:
            table[text] = described(eval(text, {"tf": tf, "np": np}))
        except Exception as error:
            raise SystemExit(f"{text}: {error}") from error
    write("expressions", table)
    write("remedies", {name: remedied(name, given) for name, given in REMEDIES})
    write("edges", {text: at_its_limits(text) for text in EDGES})


def write(name: str, table: dict[str, Any]) -> None:
    lines = ",\n".join(f"{json.dumps(text)}: {json.dumps(value)}" for text, value in table.items())
    (Path(__file__).parent / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
