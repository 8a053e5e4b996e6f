"""The expressions that `migrate` says to write for functions that are absent give what TensorFlow's functions give."""

import json
import operator
import os
import re
import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from compat.tf.remedies import OURS, REMEDIES
from jaxtribute._src.addons.compat.catalog.lookup import Kind, entry_of
from jaxtribute._src.addons.compat.catalog.operations import ABSENT
from processes import run_python

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "remedies.json").read_text())


@pytest.fixture(autouse=True)
def settings_of_jax() -> Generator[None]:
    """Those of JAX by default."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def check(seen: Any, recorded: Any) -> None:
    if isinstance(recorded, dict):
        array = np.asarray(seen)
        if recorded["dtype"].startswith("complex"):
            array = np.stack([array.real, array.imag], -1)
        np.testing.assert_allclose(array, recorded["values"], rtol=2e-4, atol=2e-4)
    elif isinstance(recorded, list):
        for part, expected in zip(seen, recorded, strict=True):
            check(part, expected)
    else:
        assert seen == recorded


def told(name: str) -> str:
    """The expression in the advice for a name."""
    entry = entry_of(name)
    assert entry.kind is Kind.ABSENT
    code = re.match("write `([^`]*)`", entry.note)
    assert code
    return code[1]


def check_told(name: str, given: dict[str, str], **modules: Any) -> None:
    modules |= {"tf": tf, "np": np, "jnp": jnp, "jax": jax}
    values = {argument: eval(text, modules) for argument, text in (given | OURS.get(name, {})).items()}
    values = {one: jnp.asarray(value) if isinstance(value, np.ndarray) else value for one, value in values.items()}
    check(eval(told(name), modules | values), RECORDED[name])


KERAS = [(name, given) for name, given in REMEDIES if "keras." in told(name)]


@pytest.mark.quick_cases(63, whole=True)
@pytest.mark.parametrize("case", [one for one in REMEDIES if one not in KERAS], ids=operator.itemgetter(0))
def test_the_expression_gives_what_tensorflow_gives(case: tuple[str, dict[str, str]]) -> None:
    check_told(*case)


@pytest.mark.slow
def test_expressions_of_keras_give_what_tensorflow_gives() -> None:
    run_python(PROGRAM, env={"KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path)})


PROGRAM = """
import keras
from compat.tf.test_remedies import KERAS, check_told

for name, given in KERAS:
    check_told(name, given, keras=keras)
assert len(KERAS) > 10
"""


def test_everything_is_recorded() -> None:
    assert list(RECORDED) == [name for name, _ in REMEDIES]


@pytest.mark.parametrize("name", ABSENT)
def test_advice_is_for_names_that_are_not_there(name: str) -> None:
    entry = entry_of(name)
    assert entry.kind is Kind.ABSENT or name in ("tf.linalg", "tf.random", "tf.queue")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["Generator.from_seed", "get_global_generator"])
def test_generators(name: str, compiled: bool) -> None:
    """The words for `tf.random.Generator`: each replica draws numbers of its own, which a seed repeats."""
    assert "`tf.random.set_seed(seed)`: each replica draws numbers of its own" in entry_of(f"tf.random.{name}").note
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(2)])

    def by_key() -> Any:
        context = tf.distribute.get_replica_context()
        assert context is not None
        return jax.random.normal(context.fold_in(jax.random.key(1)), (3,))

    for draw, changes in ((lambda: tf.random.normal((3,)), True), (by_key, False)):
        step: Any = partial(strategy.run, draw)
        step = tf.function(step) if compiled else step
        rounds: list[Any] = []
        for _ in range(2):
            tf.random.set_seed(1)
            rounds.append([np.stack(strategy.experimental_local_results(step())) for _ in range(2)])
        np.testing.assert_array_equal(*rounds)
        (first, second), _ = rounds
        assert (first[0] != first[1]).all()
        assert (first != second).all() == changes


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("tf.reduce_variance", "tf.math"),
        ("tf.relu", "tf.nn"),
        ("tf.math.relu", "tf.nn"),
        ("tf.nn.erf", "tf.math"),
    ],
)
def test_a_name_of_another_module_is_named_there(name: str, place: str) -> None:
    assert entry_of(name).note.startswith(f"write `{place}.")


@pytest.mark.parametrize("module", ["nn", "math", "linalg", "random"])
def test_modules_say_what_to_write(module: str) -> None:
    name = {"nn": "conv2d", "math": "segment_sum", "linalg": "inv", "random": "shuffle"}[module]
    with pytest.raises(AttributeError, match=f"no '{name}'. HINT: write `"):
        getattr(getattr(tf, module), name)
    with pytest.raises(AttributeError, match="HINT"):
        getattr(getattr(tf, module), f"{name}_")
