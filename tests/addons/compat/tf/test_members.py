"""What TensorFlow's objects have those here have, or `migrate` and the error name it with what to write."""

import json
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.addons.compat.catalog.lookup import Kind, entry_of
from jaxtribute._src.addons.compat.catalog.members import absent_from
from jaxtribute._src.addons.compat.migrate.findings import Finding
from jaxtribute._src.addons.compat.migrate.scan import scan

RECORDED: dict[str, str] = json.loads((Path(__file__).parent / "members.json").read_text())
TOLD_ELSEWHERE = {
    "tf.Tensor": {"numpy", "get_shape", "set_shape", "name"},
    "tf.Variable": {"get_shape", "numpy", "distribute_strategy"},
}
"""Members that are found by their names alone, and `name`, which an eager tensor does not have either."""

PROGRAMS = {
    "tf.function": "@tf.function\ndef x(a):\n    return a\n",
    "tf.Variable": "x = tf.Variable(1.0, trainable=False)",
    "tf.Tensor": "x = tf.constant(1.0)",
    "tf.data.Dataset": "x = tf.data.Dataset.range(4)",
    "tf.data.Iterator": "x = iter(tf.data.Dataset.range(4))",
    "tf.data.NumpyIterator": "x = tf.data.Dataset.range(4).as_numpy_iterator()",
    "tf.data.Options": "x = tf.data.Options()",
    "tf.experimental.Optional": "x = iter(tf.data.Dataset.range(4)).get_next_as_optional()",
    "tf.Module": "x = tf.Module()",
    "tf.train.Checkpoint": "x = tf.train.Checkpoint()",
    "tf.train.CheckpointManager": "x = tf.train.CheckpointManager(tf.train.Checkpoint(), folder, 1)",
    "tf.train.RestoreStatus": "x = tf.train.Checkpoint().restore(None)",
    "tf.train.ExponentialMovingAverage": "x = tf.train.ExponentialMovingAverage(0.9)",
    "tf.train.ClusterSpec": "x = tf.train.ClusterSpec({})",
    "tf.TensorSpec": "x = tf.TensorSpec([None])",
    "tf.TensorShape": "x = tf.TensorShape([1])",
    "tf.DType": "x = tf.float32",
    "tf.IndexedSlices": "x = tf.IndexedSlices(tf.ones([1]), tf.constant([0]))",
    "tf.config.LogicalDevice": "x = tf.config.list_logical_devices()[0]",
    "tf.config.PhysicalDevice": "x = tf.config.list_physical_devices()[0]",
    "tf.io.gfile.GFile": "x = tf.io.gfile.GFile(folder + '/file', 'w')",
    "tf.io.TFRecordWriter": "x = tf.io.TFRecordWriter(folder + '/records')",
    "tf.io.TFRecordOptions": "x = tf.io.TFRecordOptions()",
    "tf.summary.SummaryWriter": "x = tf.summary.create_file_writer(folder)",
    "tf.errors.OpError": "try:\n    raise tf.errors.InvalidArgumentError\nexcept tf.errors.OpError as x:\n"
    "    error = x",
    "tf.distribute.DistributedDataset": "strategy = tf.distribute.MirroredStrategy()\n"
    "x = strategy.experimental_distribute_dataset(tf.data.Dataset.range(4))",
    "tf.distribute.DistributedIterator": "strategy = tf.distribute.MirroredStrategy()\n"
    "x = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4)))",
    "tf.distribute.DistributedValues": "x = tf.distribute.DistributedValues",
    "tf.distribute.InputContext": "x = tf.distribute.InputContext",
    "tf.distribute.InputOptions": "x = tf.distribute.InputOptions()",
    "tf.distribute.ReplicaContext": "x = tf.distribute.ReplicaContext",
    "tf.distribute.Strategy": "x = tf.distribute.get_strategy()",
}
"""Programs that make an `x` of each class."""
SILENT = {
    "tf.Tensor", "tf.DType", "tf.data.NumpyIterator", "tf.io.gfile.GFile", "tf.train.Checkpoint",
    "tf.config.PhysicalDevice", "tf.distribute.InputOptions",
}  # fmt: skip
"""Classes whose objects here are another library's or Python's, or take any attributes: they do not tell it."""
BY_INDEX = {"tf.config.PhysicalDevice"}
"""Elements of lists, whose kind `migrate` does not follow."""


@contextmanager
def made(of: str, folder: Path) -> Generator[Any]:
    if of == "tf.summary.SummaryWriter":
        pytest.importorskip("tensorboard")
    names: dict[str, Any] = {"tf": tf, "folder": str(folder)}
    exec(PROGRAMS[of], names)
    x = names["error" if "error" in names else "x"]
    yield x
    if of in ("tf.io.gfile.GFile", "tf.io.TFRecordWriter", "tf.summary.SummaryWriter"):
        x.close()


def test_all_classes_are_recorded() -> None:
    assert RECORDED.keys() - {"tf.GradientTape"} == PROGRAMS.keys()


@pytest.mark.parametrize("of", PROGRAMS)
def test_has_each_member_or_tells_what_to_write(of: str, tmp_path: Path) -> None:
    told = absent_from(of)
    with made(of, tmp_path) as x:
        for name in RECORDED[of].split():
            if hasattr(x, name):
                assert name not in told
                continue
            remedy = told.get(name) or entry_of(f"{of}.{name}").note
            assert remedy, name
            if of not in SILENT:
                with pytest.raises(AttributeError, match="HINT") as caught:
                    getattr(x, name)
                assert remedy in str(caught.value)


@pytest.mark.parametrize("of", sorted(PROGRAMS.keys() - BY_INDEX))
def test_migrate_names_each_member_that_is_not_there(of: str, tmp_path: Path) -> None:
    with made(of, tmp_path) as x:
        absent = [name for name in RECORDED[of].split() if not hasattr(x, name)]
    found = told_of(of, absent)
    for name, findings in found.items():
        if name not in TOLD_ELSEWHERE.get(of, set()):
            assert [one.kind for one in findings] == [Kind.ABSENT], name
            assert findings[0].advice


def told_of(of: str, members: Collection[str]) -> dict[str, list[Finding]]:
    """What `migrate` finds at each member of an `x`."""
    indent = "    " if of == "tf.errors.OpError" else ""
    text = f"import tensorflow as tf\n{PROGRAMS[of]}\n" + "".join(f"{indent}print(x.{name})\n" for name in members)
    before, left = text.count("\n") - len(members), scan(text).left()
    return {name: [one for one in left if one.line == before + line] for line, name in enumerate(members, 1)}


@pytest.mark.parametrize("of", sorted(PROGRAMS.keys() - {"tf.data.Dataset"}))
def test_members_that_are_there_are_not_named(of: str) -> None:
    there = set(RECORDED[of].split()) - absent_from(of).keys() - TOLD_ELSEWHERE.get(of, set())
    assert not any(told_of(of, there).values())


METHOD = "class M(tf.Module):\n    @tf.function\n    def call(self, x):\n        return x\n"


@pytest.mark.parametrize(
    "program",
    [
        "step = tf.function(lambda x: x)\nstep.function_spec",
        "@tf.function(jit_compile=True)\ndef step(x):\n    return x\nstep.function_spec",
        "def make():\n    @tf.function\n    def step(x):\n        return x\n    return step.function_spec",
        METHOD + "step = M()\nstep.call.function_spec",
        METHOD + "    def f(self):\n        return self.call.function_spec",
        "class M:\n    def __init__(self):\n        self.f = tf.function(len)\n        self.f.function_spec",
        "with tf.name_scope('a'), tf.summary.create_file_writer('f') as writer:\n    writer.init()",
        "step: tf.Module = tf.function(len)\nstep.function_spec",
        "step, other = tf.function(len), tf.Variable(1.0, trainable=False)\nother.ref()",
        "tf.function(len).get_concrete_function(1).graph",
    ],
)
def test_kinds_are_followed(program: str) -> None:
    text = "import tensorflow as tf\n" + program
    assert [one.kind for one in scan(text).left() if one.line == text.count("\n") + 1] == [Kind.ABSENT]


def test_of_a_name_that_holds_something_else_nothing_is_told() -> None:
    text = "import tensorflow as tf\nimport weakref\ndef f(v, json):\n    return json.load(v), v.op, weakref.ref(v)\n"
    assert not scan(text).left()


def test_variables_of_the_library_tell_as_well() -> None:
    with pytest.raises(AttributeError, match=r"tf.Variable has no 'scatter_nd_add' here. HINT: write `v.assign"):
        jd.Variable(1.0).scatter_nd_add  # pyright: ignore[reportAttributeAccessIssue] # noqa: B018
