"""Control flow and reads in compiled functions that AutoGraph would rewrite."""

import textwrap

import pytest

from jaxtribute.compat.migrate import scan


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
