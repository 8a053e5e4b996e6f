"""Evaluates the expressions beside this file with TensorFlow and writes what they give, as JSON.

The suite compares with it and never imports TensorFlow. Made with tensorflow-cpu 2.21 in an environment of its own:

    python tests/addons/compat/tf/record_expressions.py
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
from expressions import EXPRESSIONS  # pyright: ignore[reportMissingImports]


def described(value: Any) -> Any:
    """A value as JSON: arrays as their type and their elements."""
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return {"dtype": array.dtype.name, "values": json.loads(json.dumps(array.tolist()))}
    if isinstance(value, (list, tuple)):
        return [described(part) for part in value]
    return value


def main() -> None:
    table: dict[str, Any] = {}
    for text in EXPRESSIONS:
        try:
            table[text] = described(eval(text, {"tf": tf, "np": np}))
        except Exception as error:
            raise SystemExit(f"{text}: {error}") from error
    lines = ",\n".join(f"{json.dumps(text)}: {json.dumps(value)}" for text, value in table.items())
    (Path(__file__).parent / "expressions.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
