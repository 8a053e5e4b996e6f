"""Makes the datasets beside this file with TensorFlow and writes what they give, as JSON.

The suite compares with it and never imports TensorFlow. Made with tensorflow-cpu 2.21 in an environment of its own:

    python tests/addons/compat/tf/record_data_programs.py
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
from data_programs import PROGRAMS, described, described_spec, generated  # pyright: ignore[reportMissingImports]


def main() -> None:
    table: dict[str, Any] = {}
    for text in PROGRAMS:
        try:
            dataset = eval(text, {"tf": tf, "np": np, **generated(tf)})
            elements = [described(element) for element in itertools.islice(dataset, 9)]
        except Exception as error:
            raise SystemExit(f"{text}: {error}") from error
        table[text] = [int(dataset.cardinality()), described_spec(dataset.element_spec), elements]
    lines = ",\n".join(f"{json.dumps(text)}: {json.dumps(value)}" for text, value in table.items())
    (Path(__file__).parent / "data_programs.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
