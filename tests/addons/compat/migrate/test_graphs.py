"""Control flow and reads in compiled functions that AutoGraph would rewrite."""

import textwrap

import pytest

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.scan import scan


def advice(body: str, head: str = "def step(iterator, x):") -> list[str]:
    code = f"import tensorflow as tf\n@tf.function\n{head}\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    return [finding.name for finding in scan(code).findings if finding.name.endswith(" in tf.function")]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("for i in tf.range(3):\n    f(i)", "for tf.range in tf.function"),
        ("for x in train_dataset:\n    f(x)", "for dataset in tf.function"),
        ("for x in tf.data.Dataset.range(3):\n    f(x)", "for dataset in tf.function"),
        ("if tf.reduce_sum(x) > 0:\n    f(x)", "if in tf.function"),
        ("while tf.less(x, 3):\n    f(x)", "while in tf.function"),
        ("y = next(outer)", "next in tf.function"),
        ("y = outer.get_next_as_optional()", "get_next_as_optional in tf.function"),
    ],
)
def test_is_told(body: str, name: str) -> None:
    assert advice(body) == [name]


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(3):\n    f(i)",
        "for v in model.trainable_variables:\n    f(v)",
        "if training:\n    f(x)",
        "y = next(iterator)",
        "y = iterator.get_next_as_optional()",
        "y = next(iter(x))",
        "while False:\n    pass",
    ],
)
def test_what_runs_as_it_is_is_not(body: str) -> None:
    assert advice(body) == []


def test_functions_that_are_not_compiled_are_let_alone() -> None:
    code = "import tensorflow as tf\ndef step(x):\n    if tf.reduce_sum(x) > 0:\n        f(x)\n"
    assert [finding for finding in scan(code).findings if " in tf.function" in finding.name] == []


def test_decorators_with_arguments_count() -> None:
    code = (
        "import tensorflow as tf\n@tf.function(jit_compile=True)\ndef g(x):\n    for i in tf.range(2):\n        f(i)\n"
    )
    assert [finding.line for finding in scan(code).findings if finding.name.startswith("for")] == [4]


def test_a_loop_over_a_dataset_that_is_passed_is_the_same() -> None:
    code = "import tensorflow as tf\n@tf.function\ndef epoch(dataset):\n    for x in dataset:\n        f(x)\n"
    (found,) = [finding for finding in scan(code).findings if finding.name.startswith("for")]
    assert (found.kind, scan(code).left()) == (Kind.SAME, ())


SERVERS = "import tensorflow as tf\nstrategy = tf.distribute.ParameterServerStrategy(resolver)\n"
MODEL = (
    "dataset = tf.data.Dataset.range(3)\nmodel.fit(dataset, epochs=2)\nmodel.evaluate(other_dataset)\nmodel.fit(x, y)\n"
)


def test_what_fits_on_parameter_servers_becomes_a_function() -> None:
    text = scan(SERVERS + MODEL).rewritten()
    assert "model.fit(lambda context: dataset, epochs=2)\nmodel.evaluate(lambda context: other_dataset)\n" in text
    assert scan(text).rewritten() == text


def test_beside_other_strategies_it_is_only_told() -> None:
    report = scan(f"{SERVERS}other = tf.distribute.MirroredStrategy()\n{MODEL}")
    told = [finding.name for finding in report.left()]
    assert told == ["fit(dataset) on parameter servers", "evaluate(dataset) on parameter servers"]


def test_elsewhere_a_dataset_is_fit_as_it_is() -> None:
    code = f"import tensorflow as tf\nother = tf.distribute.MirroredStrategy()\n{MODEL}"
    assert not [finding for finding in scan(code).findings if "parameter servers" in finding.name]


LAYERS = "layer = tf.keras.layers.Dense(2)\nprint(layer.weights[0].shape, optimizer.weights, layer.trainable_weights)\n"


def test_weights_that_are_split_are_read_by_shards() -> None:
    text = scan(SERVERS.replace("resolver", "resolver, variable_partitioner=p") + LAYERS).rewritten()
    assert "print(shards(layer.weights)[0].shape, optimizer.weights, layer.trainable_weights)" in text
    assert text.count("from jaxtribute.integrations.keras import shards\n") == 1
    assert scan(text).rewritten() == text


def test_weights_that_are_whole_are_let_alone() -> None:
    assert "shards" not in scan(SERVERS + LAYERS).rewritten()
