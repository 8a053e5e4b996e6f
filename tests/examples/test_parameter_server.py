"""The examples with parameter servers: they learn."""

import re
from pathlib import Path

import pytest

import in_threads
from processes import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTH = {"COLUMNS": "100"}


@pytest.mark.ray
def test_digits_are_learned_though_a_worker_is_killed() -> None:
    output = run_python(EXAMPLES / "parameter_server.py", "--epochs", "5", "--kill", env=WIDTH)
    assert "a worker has been killed" in output
    epochs = re.findall(r"^ +(\d) +([\d.]+) +([\d.]+)% +[\d,]+$", output, re.MULTILINE)
    assert [int(epoch) for epoch, _, _ in epochs] == [1, 2, 3, 4, 5]
    assert float(epochs[-1][2]) > 93, output


@pytest.mark.slow
def test_embeddings_of_words_are_learned() -> None:
    """Its servers and workers are threads; those of the example above are processes."""
    program = Path(in_threads.__file__)
    output = run_python(program, str(EXAMPLES / "embeddings.py"), "--steps", "300", env=WIDTH)
    found = re.search(r"loss ([\d.]+) -> ([\d.]+)", output)
    assert found, output
    assert float(found[2]) < float(found[1]) - 0.1, output
