"""Functions of `tf` on the components of a distributed value, each on its replica's device, beside NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jaxtribute.compat.tf as tf
from jaxtribute._src.addons.compat.migrate.scan import scan
from jaxtribute.errors import ShapeError

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "add": (lambda parts: tf.add(parts[0], parts[1]), lambda parts: parts[0] + parts[1]),
    "add_n": (tf.add_n, sum),
    "concat": (lambda parts: tf.concat(parts, axis=0), np.concatenate),
    "concat by name": (lambda parts: tf.concat(values=list(parts), axis=0), np.concatenate),
    "maximum": (lambda parts: tf.maximum(*parts), lambda parts: np.maximum(*parts)),
    "stack": (tf.stack, np.stack),
    "tensordot": (lambda parts: tf.tensordot(parts[0], parts[1], 1), lambda parts: np.dot(*parts)),
    "where": (lambda parts: tf.where(parts[0] > 0, parts[1], 0.0), lambda parts: np.where(parts[0] > 0, parts[1], 0)),
}


def components(rows: int, how: str) -> Any:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    data = tf.data.Dataset.from_tensor_slices(np.arange(rows, dtype="f")).batch(rows)
    (batch,) = strategy.experimental_distribute_dataset(data)
    doubled = strategy.run(lambda x: x * 2.0, (batch,))
    return doubled.values if how == "values" else strategy.experimental_local_results(doubled)


@pytest.mark.parametrize("how", ["local results", "values"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_bring_components_to_one_device(name: str, how: str) -> None:
    ours, numpys = FUNCTIONS[name]
    parts = components(4, how)
    np.testing.assert_allclose(ours(parts), numpys(list(map(np.asarray, parts))))


def test_uneven_components() -> None:
    parts = components(3, "values")
    joined = tf.concat(parts, axis=0)
    assert (np.asarray(joined).tolist(), joined.devices()) == ([0, 2, 4], parts[0].devices())
    with pytest.raises(ShapeError, match=r"add_n of arrays of shapes \(2,\) and \(1,\)"):
        tf.add_n(parts)


HEAD = "import tensorflow as tf\nlocal = strategy.experimental_local_results(x)\n"
NAMED = {
    "a sum": "sum(x.values)",
    "a sum of local results": "sum(strategy.experimental_local_results(x))",
    "an operator": "x.values[0] + x.values[1]",
    "of a name": "local[0] * local[1]",
}
FREE = {
    "a function": "tf.add_n(x.values)",
    "a dictionary": "sum(x.values())",
    "one": "x.values[0] + 1",
    "a list": "a[0] + a[1]",
}


@pytest.mark.parametrize("code", NAMED.values(), ids=NAMED)
def test_migrate_names_operators_on_components(code: str) -> None:
    (finding,) = [one for one in scan(HEAD + code + "\n").left() if one.line == 3]
    assert "each component lies on its replica's device" in finding.advice


@pytest.mark.parametrize("code", FREE.values(), ids=FREE)
def test_others_are_not_named(code: str) -> None:
    assert not [one for one in scan(HEAD + code + "\n").left() if one.line == 3]


@pytest.mark.parametrize("name", ["constant", "ones", "random_normal", "random_uniform", "zeros"])
def test_older_names_of_initializers(name: str) -> None:
    kind = "".join(part.title() for part in name.split("_"))
    after = scan(f"import tensorflow as t\ninit = t.{name}_initializer(0.5)\n").rewritten()
    assert f"init = t.keras.initializers.{kind}(0.5)" in after
