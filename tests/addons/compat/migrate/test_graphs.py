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


STEPS = """
import tensorflow as tf
class Trainer:
    @tf.function
    def steps(self, iterator, count, first=0):
        for i in tf.range(first, limit=count):
            f(next(iterator), i)
    def fit(self, iterator):
        self.steps(iterator, {0})
@tf.function
def steps(iterator, count):
    for _ in tf.range(count):
        f(next(iterator))
jitted = Trainer()
"""
CALLS = ["jitted.steps(it, {0})", "jitted.steps(it, count={0})", "steps(it, {0})", "steps(count={0}, iterator=it)"]
LENGTHS = ["tf.constant(6)", "tf.convert_to_tensor(6)", "tf.constant(6, dtype=tf.int64)", "tf.constant(FLAGS.steps)"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_tensor_as_the_length_of_a_loop_becomes_a_number(call: str, length: str) -> None:
    text = STEPS.format(3) + call.format(length) + "\n"
    (found,) = [one for one in scan(text).findings if one.name == "tensor passed to tf.range"]
    assert found.line == len(text.splitlines())
    number = length.partition("(")[2].rstrip(")").partition(",")[0]
    assert scan(text).rewritten().endswith(call.format(number) + "\n")


def test_within_the_class_it_becomes_a_number_too() -> None:
    assert "self.steps(iterator, 6)" in scan(STEPS.format("tf.constant(6)")).rewritten()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("length", "told"),
    [
        *[("n", True), ("tf.cast(m, tf.int32)", True), ("tf.minimum(m, 6)", True), ("n + 1", True)],
        *[("m", False), ("6", False), ("int(n)", False), ("m // 2", False)],
    ],
)
def test_one_that_no_change_makes_a_number_is_told_where_the_loop_is(call: str, length: str, told: bool) -> None:
    text = STEPS.format(3) + "m = 12\nn = tf.constant(m)\n" + call.format(length) + "\n"
    found = [one for one in scan(scan(text).rewritten()).left() if one.name == "tf.range() in tf.function"]
    assert [one.line for one in found] == ([6 if "jitted" in call else 12] if told else [])
    assert all("tf.while_loop, or give a number of Python" in one.advice for one in found)


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


TAPE = "\ndef step(x):\n    with tf.GradientTape() as tape:\n        y = loss(x)\n    g = tape.gradient(y, variables)\n"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("net = Net()\n{}net.trainable_variables\n", True),
        ("net, other = Net(), 3\n{}net.trainable_variables\n", True),
        ("class T:\n    def __init__(self):\n        self.net = Net()\n{}t.net.trainable_variables\n", True),
        ("def make():\n    return Net()\nnet = make()\n{}net.trainable_variables\n", True),
        ("trainer = Trainer(Net())\n{}", True),
        # Called after the gradient was asked for: too late.
        ("net = Net()\n{}net.trainable_variables\ny = net(x)\n", True),
        ("net = Net()\ny = net(x)\n{}net.trainable_variables\n", False),
        ("net = Net()\nfor x in data:\n    y, z = net(x)\n{}net.trainable_variables\n", False),
        # Keras marks a model without a `build` of its own as built, and makes no variables.
        ("net = Net()\nnet.build(s)\n{}net.trainable_variables\n", True),
        (
            "class B(Net, tf.keras.Model):\n    def build(self, s):\n        pass\nnet = B()\nnet.build(s)\n{}net(x)\n",
            False,
        ),
        ("def make():\n    net = Net()\n    net(x)\n    return net\n{}net.trainable_variables\n", False),
        # A part of another model is built with it; what is not trained needs no variables.
        ("class Outer(tf.keras.Model):\n    def __init__(self):\n        self.net = Net()\n{}", False),
        ("net = Net()\n{}", False),
    ],
)
def test_a_model_of_a_class_is_told_unless_it_is_called_before_its_gradient(made: str, told: bool) -> None:
    net = "import tensorflow as tf\nclass Net(tf.keras.Model):\n    def call(self, x):\n        return self.dense(x)\n"
    text = net + made.format(TAPE)
    assert ("model without variables" in {one.name for one in scan(text).findings}) == told, text
    again = {one.name for one in scan(scan(text).rewritten()).left()}
    assert ("model without variables" in again) == told, scan(text).rewritten()


def test_variables_that_are_made_once_in_a_function_get_a_function() -> None:
    code = (
        "import tensorflow as tf\nclass Accumulator:\n    def __call__(self, gradients):\n        if not self.made:\n"
        "            self.made = [tf.Variable({}tf.zeros_like(g), trainable=False) for g in gradients]\n"
        "            self.step = tf.Variable(initial_value={}tf.constant(0), dtype=tf.int64)\n"
        "            self.scaled = tf.Variable({}0.5 * tf.ones([2]) + 1)\n"
        "            self.less = tf.Variable({}-tf.ones(2))\n"
        "            self.plain = tf.Variable(0.0)\n    def other(self):\n        return tf.Variable(tf.zeros([2]))\n"
    )
    text = scan(code.format(*[""] * 4)).rewritten()
    wanted = code.format(*["lambda: "] * 4).replace("import tensorflow as", "import jaxtribute.compat.tf as")
    assert text == wanted
    assert scan(text).rewritten() == text


@pytest.mark.parametrize("made", ["tf.keras.Input((1,), {})", "tf.keras.layers.Input(shape=(1,), {})"])
@pytest.mark.parametrize(("kind", "told"), [('dtype="string"', 1), ("dtype=tf.string", 1), ("dtype=tf.int32", 0)])
def test_an_input_of_strings_is_told(made: str, kind: str, told: int) -> None:
    report = scan(f"import tensorflow as tf\nx = {made.format(kind)}\n")
    assert [one.name for one in report.left()] == ["Input of strings"] * told
