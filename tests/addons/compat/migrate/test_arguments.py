"""Arguments that functions of TensorFlow take, and those of `compat.tf` do not."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import jaxtribute.compat.tf as tf
from jaxtribute._src.addons.compat.catalog.lookup import distribute_entries
from jaxtribute._src.addons.compat.migrate.arguments import parameters
from jaxtribute._src.addons.compat.migrate.scan import Report, scan

START = "import tensorflow as tf\n"
VARIABLE = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def read(line: str) -> Report:
    return scan(START + line + "\n")


def told(line: str) -> list[str]:
    """What is left to do in a line, after the import."""
    return [finding.name for finding in read(line).left() if finding.line > 1]


def below(module: ModuleType, path: str) -> Iterator[str]:
    """The functions and classes of a module of `compat.tf`, and the methods of those classes."""
    for name, value in vars(module).items():
        full = f"{path}.{name}"
        if name.startswith("_") or name in ("keras", "summary"):
            continue
        if isinstance(value, ModuleType):
            yield from below(value, full) if value.__name__.startswith("jaxtribute.compat.tf") else ()
        elif callable(value) and value.__module__.startswith("jaxtribute"):
            yield full
            yield from (f"{full}.{method}" for method in dir(value) if inspect.isclass(value) and method[0] != "_")


NAMES = [name for name in dict.fromkeys([*below(tf, "tf"), *distribute_entries()]) if parameters(name) is not None]


def marked(calls: list[str]) -> list[set[str]]:
    """For each call, in a line of its own, what is said of its arguments."""
    found: list[set[str]] = [set() for _ in calls]
    for finding in scan(START + "\n".join(calls)).findings:
        if "(" in finding.name:
            found[finding.line - 2].add(finding.name)
    return found


def test_an_argument_that_any_function_lacks_is_named_with_its_line() -> None:
    assert len(NAMES) > 500
    assert {"tf.gather", "tf.image.resize", "tf.data.Dataset.map", "tf.distribute.Strategy.run"} <= set(NAMES)
    for name, found in zip(NAMES, marked([f"{name}(nonsense=1)" for name in NAMES]), strict=True):
        takes_all = any(one.kind is VARIABLE[1] for one in (parameters(name) or {}).values())
        assert (f"{name}(nonsense=)" in found) is not takes_all, name


def test_an_argument_more_than_any_function_takes_is_named_with_its_line() -> None:
    calls: list[str] = []
    for name in NAMES:
        places = [one for one in (parameters(name) or {}).values() if one.kind.value < VARIABLE[0].value]
        calls.append(f"{name}({', '.join('x' * (len(places) + 1))})")
    for name, found in zip(NAMES, marked(calls), strict=True):
        takes_all = any(one.kind is VARIABLE[0] for one in (parameters(name) or {}).values())
        assert (f"{name}(...)" in found) is not takes_all, name


def test_arguments_that_a_function_has_are_not_named() -> None:
    calls: list[str] = []
    for name in NAMES:
        known = [one for one in (parameters(name) or {}).values() if one.kind not in VARIABLE]
        places = ["x" for one in known if one.kind is inspect.Parameter.POSITIONAL_ONLY]
        given = [f"{one.name}=x" for one in known if one.kind is not inspect.Parameter.POSITIONAL_ONLY]
        calls.append(f"{name}({', '.join([*places, *given])})")
    for name, found in zip(NAMES, marked(calls), strict=True):
        assert not [one for one in found if one.endswith(("=)", "(...)"))], name


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("tf.gather(a, i, batch_dims=1)", []),
        ("tf.eye(2, 3, batch_shape=[2])", []),
        ('tf.nn.bias_add(a, b, data_format="NCHW")', ["tf.nn.bias_add(data_format=)"]),
        ('tf.image.resize(a, size, method="area")', ["tf.image.resize(method='area')"]),
        ('tf.image.resize(a, size, "area")', ["tf.image.resize(method='area')"]),
        ('how = "area"; tf.image.resize(a, size, how)', ["tf.image.resize(method='area')"]),
        ('tf.image.resize(a, size, method="nearest")', []),
        ("tf.image.resize(a, size, method=how)", []),
        ('tf.data.TFRecordDataset(names, "LZ4")', ["tf.data.TFRecordDataset(compression_type='LZ4')"]),
        ('tf.data.TFRecordDataset(names, compression_type="")', []),
        ("tf.data.TFRecordDataset(names, None)", []),
        ("tf.norm(*all, x, y, z, a, b, c)", []),
        ("tf.norm(**all)", []),
        ("tf.norm(x, 2, None, False, 5, 6)", ["tf.norm(...)"]),
        ("tf.distribute.MirroredStrategy().run(f, (), None, None, 1)", ["tf.distribute.Strategy.run(...)"]),
        (
            "tf.distribute.get_strategy().reduce('SUM', x, axis=None, other=1)",
            ["tf.distribute.Strategy.reduce(other=)"],
        ),
        ("numbers.gather(a, i, nonsense=1)", []),
        ("tf.keras.layers.Dense(1)", []),
        ("tf.nonsense.function(a=1)", ["tf.nonsense.function"]),
    ],
)
def test_calls(line: str, names: list[str]) -> None:
    assert told(line) == names


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ('tf.norm(x, name="n")', "tf.norm(x)"),
        ('tf.norm(name="n")', "tf.norm()"),
        ('tf.norm(name="n", tensor=x)', "tf.norm(tensor=x)"),
        ('tf.norm(x, 2, name="n", axis=1)', "tf.norm(x, 2, axis=1)"),
        ('tf.range(5, name="n")', 'tf.range(5, name="n")'),
    ],
)
def test_names_of_operations_are_left_out_where_they_are_not_taken(line: str, new: str) -> None:
    assert told(line) == []
    assert read(line).rewritten().splitlines()[1] == new


def test_the_advice_lists_what_there_is() -> None:
    (finding,) = read("tf.nn.bias_add(a, b, data_format=None)").left()
    assert "value, bias, name" in finding.advice
    (finding,) = read('tf.image.resize(a, size, "area")').left()
    assert "'bilinear', 'nearest'" in finding.advice


def test_a_program_with_what_used_to_fail_runs() -> None:
    names: dict[str, Any] = {}
    text = """
        a = tf.reshape(tf.range(6), [2, 3])
        picked = tf.gather(a, [[2], [0]], batch_dims=1)
        ones = tf.eye(2, 3, batch_shape=[2])
    """
    program = START + inspect.cleandoc(text)
    assert [finding for finding in scan(program).left() if finding.line > 1] == []
    exec(scan(program).rewritten(), names)  # the program of the test
    assert names["picked"].tolist() == [[2], [3]]
    assert names["ones"].shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 3])]", True),
        ("shape_invariants=[tf.TensorShape([]), tf.TensorShape([2, 3])]", False),
        ("shape_invariants=theirs", True),
        ("[tf.TensorShape([]), tf.TensorShape(None)]", True),
        ("maximum_iterations=3", False),
    ],
)
def test_loops_that_change_shapes_are_told(given: str, told: bool) -> None:
    found = scan(f"import jaxtribute.compat.tf as tf\ny = tf.while_loop(more, body, start, {given})\n").findings
    names = [one.name for one in found if one.name == "shapes of tf.while_loop"]
    assert len(names) == told, found


@pytest.mark.parametrize("argument", ["variables", "variables=None", "*, variables", "other"])
def test_gradients_of_variables_are_told(argument: str) -> None:
    code = f"@tf.custom_gradient\ndef f(x):\n    def grad(dy, {argument}):\n        return dy\n    return x, grad\n"
    found = scan(f"import jaxtribute.compat.tf as tf\n{code}").findings
    told = [one for one in found if one.name == "tf.custom_gradient(variables)"]
    assert len(told) == ("variables" in argument), found
    assert all("f(x, variable)" in one.advice for one in told)
