"""Specs, nests, modules, types, devices, bytes, random numbers and the namespace itself."""

import importlib
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.addons.compat.tf import accelerators, summaries
from jaxtribute.compat import v1
from jaxtribute.errors import ArgumentError, JaxtributeError, OutOfRangeError, TraceError
from processes import run_python

importlib.import_module("tensorboardX")  # sets a variable of the environment when it is imported


class Pair(NamedTuple):
    first: Any
    second: Any


class TestSpecs:
    def test_of_an_array(self) -> None:
        assert tf.TensorSpec.from_tensor(tf.zeros([2, 3])) == tf.TensorSpec([2, 3], tf.float32)

    def test_prints_what_it_is(self) -> None:
        assert repr(tf.TensorSpec([None, 2], tf.int32)) == "TensorSpec(shape=(None, 2), dtype=int32, name=None)"

    @pytest.mark.parametrize(
        ("shape", "fits"), [([2, 3], True), ([5, 3], True), ([2, 4], False), ([3], False), ([None, 3], True)]
    )
    def test_compatibility(self, shape: list[int], fits: bool) -> None:
        assert tf.TensorSpec([None, 3]).is_compatible_with(tf.TensorSpec(shape)) is fits

    def test_types_must_agree(self) -> None:
        assert not tf.TensorSpec([2], tf.int32).is_compatible_with(tf.zeros([2]))


class TestShapes:
    def test_what_a_shape_knows(self) -> None:
        shape = tf.TensorShape([2, None])
        assert (shape.rank, shape.ndims, shape.as_list()) == (2, 2, [2, None])
        assert shape.num_elements() is None
        assert not shape.is_fully_defined()
        assert repr(shape) == "TensorShape([2, None])"
        assert tf.TensorShape([2, 3]).num_elements() == 6
        assert tf.TensorSpec(shape) == tf.TensorSpec((2, None))

    def test_of_an_unknown_number_of_axes(self) -> None:
        unknown = tf.TensorShape(None)
        assert (unknown.rank, unknown.dims, str(unknown), repr(unknown)) == (
            None,
            None,
            "<unknown>",
            "TensorShape(None)",
        )
        assert not unknown
        assert tf.TensorShape([])
        assert unknown != tf.TensorShape([])
        assert unknown == tf.TensorShape(None) == tf.TensorShape(unknown)
        assert (unknown.num_elements(), unknown.is_fully_defined(), unknown[0]) == (None, False, None)
        assert [str(x) for x in (unknown[1:], unknown[:2], unknown + unknown, unknown.concatenate([1]))] == [
            "<unknown>",
            "(None, None)",
            "<unknown>",
            "<unknown>",
        ]
        for ask in (len, list, tf.TensorShape.as_list):
            with pytest.raises(ValueError, match="unknown number of axes"):
                ask(unknown)
        spec = tf.TensorSpec(None)
        assert spec.shape == unknown
        assert spec.is_compatible_with(tf.zeros([2, 3]))

    def test_put_together(self) -> None:
        shape = tf.TensorShape([1, None])
        assert shape.merge_with([None, 2]) == [1, 2] == tf.TensorShape(None).merge_with([1, 2])
        assert shape.concatenate([3]) == (1, None, 3) == shape + tf.TensorShape(3)
        assert shape[1:] == tf.TensorShape([None])
        assert tf.TensorShape(3) == [3]
        assert shape != "x"
        assert hash(shape) == hash(tf.TensorShape([1, None]))
        assert tf.TensorShape(None).with_rank(2) == [None, None]
        for wrong in (lambda: shape.merge_with([2, 2]), lambda: shape.with_rank(3), lambda: tf.TensorShape([-1])):
            with pytest.raises(ValueError, match="HINT"):
                wrong()

    def test_a_generator_takes_one(self) -> None:
        dataset = tf.data.Dataset.from_generator(lambda: [[1.0]], tf.float32, tf.TensorShape([1]))
        assert [element.tolist() for element in dataset.as_numpy_iterator()] == [[1.0]]


class TestNest:
    def test_flatten_counts_none(self) -> None:
        assert tf.nest.flatten({"b": 1, "a": (None, [2])}) == [None, 2, 1]

    def test_map_structure(self) -> None:
        assert tf.nest.map_structure(lambda x, y: x + y, Pair(1, [2]), Pair(10, [20])) == Pair(11, [22])

    def test_variables_and_distributed_values_are_leaves(self) -> None:
        with jd.MirroredStrategy(["CPU:0", "CPU:1"]).scope() as strategy:
            parts = [tf.Variable(1.0), strategy.run(lambda: tf.constant(2.0))]
        assert tf.nest.flatten({"a": parts}) == parts
        assert tf.nest.map_structure(type, parts) == [jd.Variable, type(parts[1])]
        assert tf.nest.pack_sequence_as([0, (1,)], parts) == [parts[0], (parts[1],)]

    def test_pack_sequence(self) -> None:
        assert tf.nest.pack_sequence_as({"a": 0, "b": (0, 0)}, [1, 2, 3]) == {"a": 1, "b": (2, 3)}

    def test_is_nested(self) -> None:
        assert tf.nest.is_nested([1])
        assert not tf.nest.is_nested(1)

    def test_structures_that_differ(self) -> None:
        tf.nest.assert_same_structure((1, [2]), (3, [4]))
        with pytest.raises(ValueError, match=r"differ.*HINT"):
            tf.nest.assert_same_structure((1, [2]), (3, 4))


class TestModules:
    def test_variables_are_found_at_any_depth(self) -> None:
        class Layer(tf.Module):
            def __init__(self) -> None:
                super().__init__()
                self.w = tf.Variable(1.0, name="w")
                self.count = tf.Variable(0, name="count", trainable=False)

        class Model(tf.Module):
            def __init__(self) -> None:
                super().__init__("model")
                self.layers = {"b": [Layer()], "a": (Layer(),)}
                self.scale = tf.Variable(2.0, name="scale")
                self.again = self.scale

        model = Model()
        assert [v.name for v in model.variables] == ["scale:0", "count:0", "w:0", "count:0", "w:0"]
        assert [v.name for v in model.trainable_variables] == ["scale:0", "w:0", "w:0"]
        assert len(model.submodules) == 2
        assert (model.name, model.submodules[0].name) == ("model", "layer")

    def test_names_are_those_of_tensorflow(self) -> None:
        class Dense2D(tf.Module):
            def __init__(self, name: str | None = None) -> None:
                super().__init__(name)
                with self.name_scope:
                    self.b = tf.Variable(0.0, name="b")

        class MLPBlock(tf.Module):
            def __init__(self) -> None:
                super().__init__()
                with self.name_scope:
                    self.w = tf.Variable(1.0, name="w")
                    self.inner = [Dense2D(), Dense2D("other")]

            @tf.Module.with_name_scope
            def __call__(self, x: float) -> Any:
                self.late = tf.Variable(2.0, trainable=False, name="late")
                return x * self.w

        with tf.name_scope("outer"):
            module = MLPBlock()
        assert module(3.0) == 3.0
        # As TensorFlow 2.21 names them.
        names = ["late:0", "w:0", "dense2_d/b:0", "other/b:0"]
        assert [v.name for v in module.variables] == [f"outer/mlp_block/{name}" for name in names]
        assert [v.name for v in module.non_trainable_variables] == ["outer/mlp_block/late:0"]
        assert [one.name for one in module.submodules] == ["dense2_d", "other"]
        made = {name: type(name, (tf.Module,), {})().name for name in ("HTTPServer", "myThing", "Conv2DLayer", "RNN")}
        assert list(made.values()) == ["http_server", "my_thing", "conv2_d_layer", "rnn"]

    def test_a_name_that_is_none(self) -> None:
        with pytest.raises(ValueError, match=r"'a b' is no name of a module.*HINT"):
            tf.Module("a b")

    def test_modules_that_hold_each_other(self) -> None:
        one, two = tf.Module("one"), tf.Module("two")
        one.other, two.other = two, one  # pyright: ignore[reportAttributeAccessIssue]
        assert one.submodules == (two,)


class TestTypes:
    @pytest.mark.parametrize("name", ["float32", "int64", "bool", "uint8", "bfloat16"])
    def test_are_those_of_numpy(self, name: str) -> None:
        assert getattr(tf, name) == jax.numpy.dtype(name)
        assert getattr(tf, name).name == name

    def test_by_name(self) -> None:
        assert tf.as_dtype("int32") == tf.int32
        assert tf.as_dtype("string") == tf.string
        assert tf.as_dtype(float) == tf.float64


class TestDevices:
    def test_logical_devices(self) -> None:
        devices = tf.config.list_logical_devices("CPU")
        assert [device.name[-5:] for device in devices] == [f"CPU:{i}" for i in range(8)]
        assert tf.config.list_logical_devices("TPU") == []

    def test_a_logical_device_prints_itself_and_can_be_copied(self) -> None:
        device = tf.config.list_logical_devices("CPU")[1]
        assert repr(device) == str(device) == f"LogicalDevice(name={device.name!r}, device_type='CPU')"
        again = pickle.loads(pickle.dumps(device))
        assert (again, again.name, again.device_type) == (device, device.name, "CPU")

    @pytest.mark.parametrize("given", ["the device", "its name"])
    @pytest.mark.parametrize(
        ("make", "last"),
        [
            (tf.distribute.MirroredStrategy, 3),
            (lambda devices: tf.distribute.MirroredStrategy(devices=devices[:2]), 1),
            (lambda devices: tf.distribute.OneDeviceStrategy(devices[2]), 2),
            (lambda devices: tf.distribute.OneDeviceStrategy(device=devices[1]), 1),
            (lambda devices: tf.distribute.experimental.CentralStorageStrategy(devices, devices[1]), 3),
            (jd.FullyShardedStrategy, 3),
            (v1.MirroredStrategy, 3),
            (lambda devices: v1.OneDeviceStrategy(devices[1]), 1),
            (lambda devices: v1.experimental.CentralStorageStrategy(devices, parameter_device=devices[0]), 3),
        ],
    )
    def test_strategies_take_logical_devices(self, make: Any, last: int, given: str) -> None:
        devices = tf.config.list_logical_devices("CPU")[:4]
        strategy = make(devices if given == "the device" else [device.name for device in devices])
        assert strategy.extended.worker_devices[-1] == devices[last].name
        with strategy.scope():
            variable = tf.Variable(1.0)
        found = strategy.reduce("SUM", strategy.run(variable.read_value), axis=None)
        assert float(found) == strategy.num_replicas_in_sync

    def test_a_logical_device_is_one_for_a_block(self) -> None:
        device = tf.config.list_logical_devices("CPU")[3]
        with tf.device(device):
            assert [str(one.id) for one in tf.constant(1.0).devices()] == ["3"]

    def test_all_cpus_are_one_physical_device(self) -> None:
        assert [device.device_type for device in tf.config.list_physical_devices("CPU")] == ["CPU"]
        assert tf.config.list_physical_devices("TPU") == []
        assert "CPU" in [device.device_type for device in tf.config.list_physical_devices()]

    def test_older_names_and_the_memory_of_gpus(self) -> None:
        assert tf.config.experimental.list_physical_devices is tf.config.list_physical_devices
        for device in tf.config.experimental.list_physical_devices():
            tf.config.experimental.set_memory_growth(device, True)
        assert tf.get_logger().name == "tensorflow"

    def test_only_a_cpu_can_be_split(self) -> None:
        with pytest.raises(ArgumentError, match=r"GPU.*HINT"):
            tf.config.set_logical_device_configuration(tf.config.PhysicalDevice("gpu", "GPU"), [])

    @pytest.mark.slow
    def test_splitting_before_jax_starts(self) -> None:
        output = run_python("""
            import jaxtribute.compat.tf as tf
            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
            print(len(tf.config.list_logical_devices()))
        """)
        assert output.strip() == "3"

    @pytest.mark.slow
    @pytest.mark.parametrize("platforms", ["", "cpu"])
    def test_questions_leave_the_cpu_to_be_split(self, platforms: str) -> None:
        output = run_python(
            """
            import jaxtribute.compat.tf as tf
            config = tf.config
            for ask in (
                config.list_physical_devices,
                config.experimental.list_physical_devices,
                config.get_visible_devices,
                config.experimental.get_visible_devices,
            ):
                for kind in ("GPU", "TPU", "XLA_GPU"):
                    assert ask(kind) == [], (ask, kind)
                assert ask() == ask("CPU") == ask(device_type=None), ask
            for gpu in config.list_physical_devices("GPU"):
                config.experimental.set_memory_growth(gpu, True)
            parts = [config.LogicalDeviceConfiguration()] * 3
            if not config.list_physical_devices("GPU"):
                config.set_logical_device_configuration(config.list_physical_devices()[0], parts)
            print(len(config.list_logical_devices("CPU")), len(config.get_visible_devices()))
            """,
            env={"JAX_PLATFORMS": platforms},
        )
        assert output.split() == ["3", "1"]


class TestAccelerators:
    @pytest.fixture(autouse=True)
    def nothing_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(accelerators, "_plugins", list[str])
        monkeypatch.setattr(accelerators, "find_spec", lambda name: None)
        monkeypatch.setattr(accelerators, "visible_gpus", lambda environ: [])
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(accelerators, "_platforms", lambda: "")

    def test_none_can_be_found(self) -> None:
        assert accelerators.accelerator_kind() == ""

    @pytest.mark.parametrize(("platforms", "kind"), [("cpu", ""), ("cpu,cuda", ""), ("cuda,cpu", "GPU"), (None, "")])
    def test_platforms_decide(self, platforms: str | None, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(accelerators, "_platforms", lambda: platforms)
        assert accelerators.accelerator_kind() == kind

    @pytest.mark.parametrize(
        ("plugin", "gpus", "kind"),
        [("xla_cuda12", [], ""), ("xla_cuda12", ["0"], "GPU"), ("xla_rocm60", [], "GPU"), ("mine", [], "GPU")],
    )
    def test_plugins_are_asked(self, plugin: str, gpus: list[str], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(accelerators, "_plugins", lambda: [plugin])
        monkeypatch.setattr(accelerators, "visible_gpus", lambda environ: gpus)
        assert accelerators.accelerator_kind() == kind

    @pytest.mark.parametrize("variable", ["PJRT_NAMES_AND_LIBRARY_PATHS", "TPU_LIBRARY_PATH"])
    def test_libraries_of_the_environment_are_asked(self, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(variable, "mine:/lib/mine.so")
        assert accelerators.accelerator_kind() == "GPU"

    def test_the_library_of_tpus_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(accelerators, "find_spec", lambda name: name == "libtpu" or None)
        assert accelerators.accelerator_kind() == "GPU"


class TestTpus:
    def test_what_programs_call_first_does_nothing(self) -> None:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.config.experimental_connect_to_cluster(resolver, make_master_device_default=False)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        tf.tpu.experimental.shutdown_tpu_system()

    @pytest.mark.parametrize("owner", [tf.tpu, tf.tpu.experimental, tf.config, tf.config.experimental, tf.train])
    def test_other_names_are_explained(self, owner: Any) -> None:
        with pytest.raises(AttributeError, match="HINT"):
            _ = owner.nonsense


class TestBytes:
    def test_decode_raw(self) -> None:
        assert tf.io.decode_raw(np.arange(3, dtype="<f4").tobytes(), tf.float32).tolist() == [0.0, 1.0, 2.0]

    def test_decode_raw_of_several_big_endian_strings(self) -> None:
        rows = [np.array(row, ">i2").tobytes() for row in ([1, 2], [3, 4])]
        assert tf.io.decode_raw(rows, tf.int16, little_endian=False).tolist() == [[1, 2], [3, 4]]

    def test_other_formats_are_explained(self) -> None:
        with pytest.raises(AttributeError, match="HINT"):
            _ = tf.io.VarLenFeature


class TestRandom:
    @pytest.mark.parametrize("draw", [tf.random.normal, tf.random.uniform, tf.random.truncated_normal])
    def test_a_seed_repeats_the_numbers(self, draw: Any) -> None:
        assert draw([3], seed=1).tolist() == draw([3], seed=1).tolist()
        tf.random.set_seed(5)
        first = draw([3]).tolist()
        tf.random.set_seed(5)
        assert draw([3]).tolist() == first

    def test_ranges(self) -> None:
        numbers = tf.random.uniform([100], 2, 5, tf.int32)
        assert numbers.dtype == np.int32
        assert {2, 3, 4} >= set(numbers.tolist())
        assert float(abs(tf.random.truncated_normal([500])).max()) <= 2.0

    def test_stateless_numbers_belong_to_their_seed(self) -> None:
        for draw in (tf.random.stateless_normal, tf.random.stateless_uniform):
            assert draw([2], seed=[1, 2]).tolist() == draw([2], seed=[1, 2]).tolist()
            assert draw([2], seed=[1, 2]).tolist() != draw([2], seed=[1, 3]).tolist()
        assert tf.random.stateless_uniform([2], [0, 0], 1, 3, tf.int32).dtype == np.int32

    @pytest.mark.parametrize("draw", [tf.random.normal, tf.random.uniform, tf.random.truncated_normal])
    def test_numbers_of_a_compiled_function_are_new_on_each_call_and_replica(self, draw: Any) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        step = tf.function(lambda: strategy.run(lambda: (draw([2]), draw([2]))))
        seen: list[float] = []
        for _ in range(2):
            for part in strategy.experimental_local_results(step()):
                seen += np.asarray(part).ravel().tolist()
        assert len(set(seen)) == 16
        tf.random.set_seed(3)
        first = strategy.experimental_local_results(step())
        tf.random.set_seed(3)
        np.testing.assert_array_equal(first, strategy.experimental_local_results(step()))

    def test_a_choice_would_be_a_constant_of_a_compiled_function(self) -> None:
        with pytest.raises(TraceError, match=r"dataset's map"):
            tf.function(lambda: tf.image.random_flip_left_right(np.zeros((2, 2, 1), np.float32)))()


class TestNamespace:
    def test_distribute_is_this_library(self) -> None:
        assert tf.distribute.MirroredStrategy is jd.MirroredStrategy
        assert tf.distribute.InputContext is jd.InputContext
        assert tf.distribute.experimental.CentralStorageStrategy is jd.CentralStorageStrategy

    @pytest.mark.parametrize(
        ("owner", "name", "advice"),
        [
            (tf, "GradientTape", "jd.value_and_grad"),
            (tf, "estimator", "training loop"),
            (tf, "nonsense", "migration.md"),
            (tf.data, "nonsense", "migration.md"),
            (tf.distribute, "nonsense", "migration.md"),
            (tf.compat.v1, "Session", "no sessions"),
        ],
    )
    def test_names_that_are_absent_say_what_to_write(self, owner: Any, name: str, advice: str) -> None:
        with pytest.raises(AttributeError, match=advice):
            getattr(owner, name)

    def test_names_of_the_library_that_tensorflow_has_not_are_not_there(self) -> None:
        with pytest.raises(AttributeError):
            getattr(tf.distribute, "function")  # noqa: B009

    def test_errors(self) -> None:
        assert tf.errors.OutOfRangeError is OutOfRangeError
        assert tf.errors.OpError is JaxtributeError


def test_a_writer_stays_the_default_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{summaries.__name__}._State.writers", [])
    assert not tf.summary.scalar("loss", 1.0, step=0)
    first, second = (tf.summary.create_file_writer(str(tmp_path / name)) for name in ("first", "second"))
    first.set_as_default(step=3)
    assert tf.summary.scalar("loss", 1.0)
    with second.as_default():
        assert tf.summary.scalar("other", 1.0, step=4)
    assert tf.summary.scalar("last", 2.0)
    first.close()
    second.close()
    texts = [b"".join(file.read_bytes() for file in (tmp_path / name).iterdir()) for name in ("first", "second")]
    assert [[name in text for name in (b"loss", b"other", b"last")] for text in texts] == [
        [True, False, True],
        [False, True, False],
    ]
