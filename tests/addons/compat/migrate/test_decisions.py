"""Questions that Python asks of arrays in compiled functions: a table of questions and of what is asked.

The oracle is the library itself: what a table says is told stops the program, and what it says is not told runs.
"""

import textwrap

import pytest

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.scan import scan

QUESTIONS = {
    "if": "if {} % 2 == 0:\n    x = x + 1",
    "if (truth)": "if {} % 2:\n    x = x + 1",
    "if (and)": "if True and {} > 0:\n    x = x + 1",
    "elif": "if FALSE:\n    pass\nelif {} > 100:\n    x = x + 1",
    "if (not)": "if not {} > 1:\n    x = x + 1",
    "if (nested)": "for i in range(2):\n    if i == 0:\n        if {} >= 2:\n            x = x + 1",
    "while": "while {} < -1:\n    x = x + 1",
    "x if y else z": "x = x + (1.0 if {} > 3 else 2.0)",
    "assert": "assert {} >= 0",
    "and": "y = {} > 0 and x",
    "or": "y = {} < 0 or x",
    "not": "y = not {} > 0",
    "x < y < z": "y = 0 < {} < 3",
    "in": "y = {} in (1, 2)",
    "int()": "y = int({})",
    "float()": "y = float({} * 2)",
    "bool()": "y = bool({} + 1)",
    "range()": "for i in range({} + 1):\n    x = x + 1",
    "min()": "y = min({}, 3)",
    "max()": "y = max(3, {})",
    "if (comprehension)": "y = [i for i in range(3) if {} > i]",
}
"""A question, and what asks it of an expression."""

COMPILED = "@tf.function\ndef step(x):\n    {}\n    return x\nstep(tf.constant(1.0))\n"
ARRAYS = {
    "variable of the module": ("counter = tf.Variable(2)\n" + COMPILED, "counter"),
    "a copy of it": ("counter = tf.Variable(2)\n" + COMPILED, "tf.identity(counter)"),
    "its value": ("counter = tf.Variable(2)\n" + COMPILED, "counter.read_value()"),
    "what assigning gives": ("counter = tf.Variable(2)\n" + COMPILED, "counter.assign_add(1)"),
    "variable of a scope": (
        "strategy = tf.distribute.get_strategy()\nwith strategy.scope():\n"
        "    counter = tf.Variable(2, trainable=False)\n" + COMPILED,
        "counter",
    ),
    "variable of a closure": (
        "def main():\n    counter = tf.Variable(2)\n"
        + textwrap.indent(COMPILED.replace("    {}", "    {indented}"), "    ")
        + "main()\n",
        "counter",
    ),
    "a global one": (
        "counter = None\ndef build():\n    global counter\n    counter = tf.Variable(2)\nbuild()\n" + COMPILED,
        "counter",
    ),
    "an attribute": (
        (
            "class T:\n    def __init__(self):\n        self.step = tf.Variable(2)\n    @tf.function\n"
            "    def train(self, x):\n        {indented}\n        return x\nT().train(tf.constant(1.0))\n"
        ),
        "self.step",
    ),
    "an attribute of another object": (
        "class T:\n    def __init__(self):\n        self.step = tf.Variable(2)\nt = T()\n" + COMPILED,
        "t.step",
    ),
    "one of a list": ("counters = [tf.Variable(2) for _ in range(3)]\n" + COMPILED, "counters[1]"),
    "computed before": ("counter = tf.Variable(2)\n" + COMPILED.replace("    {}", "    n = counter + 1\n    {}"), "n"),
    "an argument": (COMPILED.replace("(x):", "(x, n):").replace("(1.0)", "(1.0), tf.constant(2)"), "n"),
    "an argument by its signature": (
        COMPILED.replace("(x):", "(x, n):")
        .replace("@tf.function", "@tf.function(input_signature=[tf.TensorSpec([]), tf.TensorSpec([], tf.int32)])")
        .replace("(1.0)", "(1.0), tf.constant(2)"),
        "n",
    ),
    "a result": (COMPILED, "tf.cast(tf.reduce_sum(x), tf.int32)"),
    "one by a name": (COMPILED.replace("    {}", "    n = tf.cast(tf.math.abs(x), tf.int32)\n    {}"), "n"),
    "of a function that is called": (
        "counter = tf.Variable(2)\ndef count(v):\n    return v.read_value() + 1\n" + COMPILED,
        "count(counter)",
    ),
    "in a function that is called": (
        "counter = tf.Variable(2)\ndef inner(n, x):\n    {}\n    return x\n"
        + COMPILED.replace("{}", "x = inner(counter + 1, x)"),
        "n",
    ),
    "in a replica function": (
        "strategy = tf.distribute.get_strategy()\ndef replica(n, x):\n    {}\n    return x\n"
        + COMPILED.replace("{}", "x = strategy.run(replica, args=(tf.cast(x, tf.int32), x))"),
        "n",
    ),
}
"""A program, and an expression in it that is an array."""


def program(template: str, expression: str, question: str) -> str:
    lines = question.format(expression)
    for spaces in (8, 4):
        mark = "{indented}" if spaces == 8 else "{}"
        template = template.replace(mark, lines.replace("\n", "\n" + " " * spaces))
    return "import jaxtribute.compat.tf as tf\nFALSE = False\n" + template


def told(text: str) -> list[str]:
    names = [one.name.removesuffix(" in tf.function") for one in scan(text).left() if "tf.function" in one.name]
    return [name.removesuffix(", maybe") for name in names]


@pytest.mark.parametrize("source", sorted(ARRAYS))
def test_what_python_asks_of_an_array_is_told_once(source: str) -> None:
    for question, asks in QUESTIONS.items():
        text = program(*ARRAYS[source], asks)
        expected = question.partition(" (")[0].replace("elif", "if")
        assert told(text) == [expected], text


@pytest.mark.parametrize("source", sorted(ARRAYS))
def test_what_is_told_stops_the_program(source: str) -> None:
    # One question for each source, and all for the first.
    chosen = sorted(QUESTIONS) if source == "variable of the module" else ["if", "int()"]
    for question in chosen:
        text = program(*ARRAYS[source], QUESTIONS[question])
        with pytest.raises(Exception, match=r"[Tt]race"):
            exec(text, {})


NUMBERS = {
    "a number": ("n = 2\n" + COMPILED, "n"),
    "a number of a closure": (
        "def main(n):\n" + textwrap.indent(COMPILED.replace("    {}", "    {indented}"), "    ") + "main(2)\n",
        "n",
    ),
    "an attribute": (
        (
            "class T:\n    def __init__(self):\n        self.step = 2\n    @tf.function\n"
            "    def train(self, x):\n        {indented}\n        return x\nT().train(tf.constant(1.0))\n"
            "class Other:\n    def __init__(self):\n        self.step = tf.Variable(2)\n"
        ),
        "self.step",
    ),
    "a length": (COMPILED.replace("(1.0)", "([1.0, 2.0])"), "len(x)"),
    "a shape": (COMPILED.replace("(1.0)", "([1.0, 2.0])"), "x.shape[0]"),
    "a shape by a function": (COMPILED.replace("(1.0)", "([1.0, 2.0])"), "tf.shape(x)[0]"),
    "its name": (COMPILED.replace("(1.0)", "([1.0, 2.0])").replace("    {}", "    n = x.shape[0]\n    {}"), "n"),
    "an argument that is a number": (COMPILED.replace("(x):", "(x, n):").replace("(1.0)", "(1.0), 2"), "n"),
    "one of a loop": (
        COMPILED.replace("(x):", "(x, n):")
        .replace("step(tf", "for i, y in enumerate([1.0, 2.0]):\n    step(tf")
        .replace("(1.0)", "(1.0), i"),
        "n",
    ),
    "an argument with a default": (COMPILED.replace("(x):", "(x, n=2):"), "n"),
    "a typed argument": (COMPILED.replace("(x):", "(x, n: int):").replace("(1.0)", "(1.0), 2"), "n"),
    "replicas": (
        "strategy = tf.distribute.get_strategy()\n" + COMPILED,
        "strategy.num_replicas_in_sync",
    ),
    "in a function that is called": (
        "def inner(n, x):\n    {}\n    return x\n" + COMPILED.replace("{}", "x = inner(2, x)"),
        "n",
    ),
    "of a loop in the function": (COMPILED.replace("    {}", "    for n in range(2):\n        {indented}"), "n"),
    "of enumerate": (
        COMPILED.replace("    {}", "    for n, y in enumerate([x, x]):\n        {indented}"),
        "n",
    ),
}
"""A program, and an expression in it that Python knows."""
RIGHT = [
    "if x is None:\n    x = 1",
    "if x is not None and FALSE:\n    x = 1",
    "if isinstance(x, int):\n    x = 1",
    "if hasattr(x, 'y') or callable(x):\n    x = 1",
    "if x.dtype == tf.float32:\n    x = x + 1",
    "if x.shape == (2,) or x.ndim > 3:\n    x = x + 1",
    "if training:\n    x = x + 1",
    "if mode == 'train':\n    x = x + 1",
    "y = x if training else None",
    "assert x.shape is not None\nassert len(x.shape) < 3",
    "y = {'a': x}\nfor k, v in y.items():\n    if k == 'b':\n        x = v\nif 'a' in y and y:\n    x = y['a']",
    "y = [x, x]\nif y and len(y) > 1:\n    x = y[0]",
    "y = tf.split(tf.stack([x, x]), 2)\nfor i in range(len(y)):\n    x = x + y[i]",
    "grads = [None, x]\ny = [g for g in grads if g is not None]",
    "y = not training",
    "y = tf.where(x > 0, x, 0.0) + tf.cast(x > 0, tf.float32)",
    "y = abs(x) + round(3.7) + max(1, 2) + int(2.5)",
    "names = [v.name for v in optimizer.variables if 'bias' not in v.name]",
    "for v in optimizer.variables:\n    if v.trainable and 'kernel' in v.name:\n        x = x + 1",
    "y = f'{x}' + ('%s' % x)",
    "if optimizer.name == 'adam':\n    x = 1",
]


@pytest.mark.parametrize("source", sorted(NUMBERS))
def test_what_python_knows_is_not_told_and_runs(source: str) -> None:
    for question, asks in QUESTIONS.items():
        text = program(*NUMBERS[source], asks)
        assert told(text) == [], text
        if question in ("if", "int()"):
            exec(text, {})


@pytest.mark.parametrize("body", RIGHT)
def test_right_programs_are_quiet_and_run(body: str) -> None:
    optimizer = "N(name='adam', variables=[N(name='kernel', trainable=True)])"
    head = f"from types import SimpleNamespace as N\nmode = 'eval'\noptimizer = {optimizer}\n"
    text = program(
        head + COMPILED.replace("(x):", "(x, training=False):"), "", body.replace("{", "{{").replace("}", "}}")
    )
    assert told(text) == [], text
    exec(text, {})


def test_of_an_argument_of_which_nothing_is_known_only_what_it_answers_is_told() -> None:
    text = "import tensorflow as tf\n@tf.function\ndef step(x, first):\n"
    text += "    if first:\n        pass\n    if x > 0:\n        pass\n"
    (found,) = scan(text).left()
    assert (found.line, found.name) == (6, "if, maybe in tf.function")


def test_a_branch_that_assigns_says_how_to_assign() -> None:
    text = program(*ARRAYS["variable of the module"], "if {} > 0:\n    counter.assign(0)")
    (found,) = scan(text).left()
    assert found.kind is Kind.DIFFERENT
    assert "v.assign(tf.where(condition, new, v))" in found.advice


def test_counts_of_optimizers_and_results_of_metrics_are_arrays() -> None:
    made = "import tensorflow as tf\no = tf.keras.optimizers.SGD()\nm = tf.keras.metrics.Mean()\n@tf.function\n"
    text = (
        made
        + "def step(x):\n    if o.iterations % 2 == 0 and len(o.variables) > 3:\n        pass\n    int(m.result())\n"
    )
    assert told(text) == ["if", "int()"]
    assert told(made + "def step(x):\n    if len(o.variables) > 3 and o.name == 'sgd':\n        pass\n") == []


@pytest.mark.parametrize(
    "code",
    [
        "def step(x):\n    if counter > 0:\n        x = x + 1\nstep(tf.constant(1.0))\n",
        "@tf.function\ndef epoch(dataset):\n    for x in dataset:\n        if counter > 0:\n            pass\n",
        "@tf.function\ndef total(dataset):\n    return sum(int(x) for x in dataset)\n",
    ],
)
def test_functions_that_run_as_python_are_let_alone(code: str) -> None:
    assert told(f"import jaxtribute.compat.tf as tf\ncounter = tf.Variable(1)\n{code}") == []


def test_a_function_that_is_passed_to_tf_function_is_compiled() -> None:
    code = "def step(x):\n    if counter > 0:\n        x = x + 1\ncompiled = tf.function(step)\n"
    assert told(f"import jaxtribute.compat.tf as tf\ncounter = tf.Variable(1)\n{code}") == ["if"]


def test_classes_that_are_bases_of_each_other_are_read() -> None:
    code = "class A(B):\n    def f(self):\n        self.g(1)\nclass B(A):\n    def f(self):\n        self.g(2)\n"
    assert told(f"import tensorflow as tf\n{code}") == []


@pytest.mark.parametrize(
    "question", ["for _ in tf.range(steps): f()", "while steps > 0: f()", "if steps > 0: f()", "range(steps + 1)"]
)
@pytest.mark.parametrize("signature", ["input_signature=[tf.TensorSpec([], tf.int32)]", "jit_compile=True", ""])
def test_a_signature_that_makes_a_tensor_of_the_number_is_named(question: str, signature: str) -> None:
    decorator = f"@tf.function({signature})" if signature else "@tf.function"
    code = f"import tensorflow as tf\n{decorator}\ndef step(steps):\n    {question}\nstep(tf.constant(3))\n"
    told = " ".join(one.advice for one in scan(code).findings)
    assert ("`input_signature` makes a tensor of `steps`: without it the function" in told) == ("input" in signature)
