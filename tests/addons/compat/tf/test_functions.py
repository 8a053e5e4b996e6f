"""`tf.function`, placement, control flow, printing and the switches without effect."""

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.core.devices import device_name
from jaxtribute.errors import DeviceError, TraceError
from parameter_servers.clusters import threads


class TestFunction:
    def test_compiles_once_for_a_signature(self) -> None:
        traced: list[int] = []

        @tf.function
        def double(x: Any) -> Any:
            traced.append(1)
            return x * 2

        assert [float(double(jnp.float32(x))) for x in (1, 2)] == [2.0, 4.0]
        assert traced == [1]

    def test_takes_tensorflows_options(self) -> None:
        @tf.function(jit_compile=True, autograph=False, reduce_retracing=True)
        def f(x: Any) -> Any:
            return x + 1

        assert float(f(jnp.float32(1))) == 2.0

    def test_refuses_options_that_it_has_not(self) -> None:
        with pytest.raises(TypeError, match="nonsense"):
            tf.function(lambda: None, nonsense=True)

    def test_numbers_come_back_with_tensorflows_types(self) -> None:
        result = tf.function(lambda: (1, 2.0, {"a": True}))()
        assert [leaf.dtype.name for leaf in jax.tree.leaves(result)] == ["int32", "float32", "bool"]

    def test_keeps_the_name(self) -> None:
        @tf.function
        def a_name() -> int:
            return 1

        assert a_name.__name__ == "a_name"

    def test_is_a_method(self) -> None:
        class Model:
            def __init__(self) -> None:
                self.scale = tf.Variable(3.0)

            @tf.function
            def __call__(self, x: Any) -> Any:
                return self.scale * x

        assert float(Model()(jnp.float32(2))) == 6.0

    @pytest.mark.parametrize(
        "numbers",
        [
            tf.range,
            lambda n: tf.range(2, n),
            lambda n: tf.range(0, limit=n, delta=2),
            lambda n: tf.range(n, 9),
        ],
    )
    def test_a_tensor_as_the_length_of_a_range_is_told(self, numbers: Any) -> None:
        @tf.function
        def steps(count: Any) -> Any:
            for number in numbers(count):
                count += number
            return count

        assert int(steps(3)) >= 3
        with pytest.raises(jax.errors.ConcretizationTypeError) as error:
            steps(tf.constant(3))
        assert "HINT: tf.range(" in error.value.__notes__[0]
        assert "steps=8 in place of steps=tf.constant(8), or write tf.while_loop" in error.value.__notes__[0]

    def test_runs_on_replicas(self) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        result = strategy.run(tf.function(lambda x: x * 2.0), (tf.constant(3.0),))
        assert [float(part) for part in result.values] == [6.0, 6.0]

    def test_an_iterator_that_is_passed_can_be_read(self) -> None:
        strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
        iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)))

        @tf.function
        def step(iterator: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(lambda x: x, (next(iterator),)), axis=0)

        assert [int(step(iterator)) for _ in range(2)] == [1, 5]
        iterator.close()


class TestDevice:
    def test_new_arrays_lie_there(self) -> None:
        with tf.device("/cpu:3"):
            assert device_name(jnp.zeros(1).devices().pop()).endswith("CPU:3")

    def test_none_changes_nothing(self) -> None:
        with tf.device(None):
            assert device_name(jnp.zeros(1).devices().pop()).endswith("CPU:0")

    def test_must_exist(self) -> None:
        with pytest.raises(DeviceError):
            tf.device("GPU:7")


class TestControlFlow:
    def test_cond_of_a_known_value_calls_one_function(self) -> None:
        assert tf.cond(True, lambda: "yes", lambda: "no") == "yes"
        assert tf.cond(tf.constant(False), lambda: 1, lambda: 2) == 2

    def test_cond_in_a_compiled_function(self) -> None:
        @tf.function
        def sign(x: Any) -> Any:
            return tf.cond(x > 0, lambda: 1.0, lambda: -1.0)

        assert [float(sign(jnp.float32(x))) for x in (3, -3)] == [1.0, -1.0]

    def test_while_loop(self) -> None:
        count, total = tf.while_loop(lambda i, _: i < 5, lambda i, t: (i + 1, t + i), [0, 0])
        assert (int(count), int(total)) == (5, 10)

    def test_while_loop_of_one_variable(self) -> None:
        assert int(tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0])[0]) == 3

    def test_while_loop_stops_at_the_limit(self) -> None:
        assert int(tf.while_loop(lambda i: True, lambda i: i + 1, [0], maximum_iterations=4)[0]) == 4


class TestPrint:
    def test_writes_values(self) -> None:
        stream = io.StringIO()
        tf.print("loss", tf.constant([1, 2]), 3, output_stream=stream, sep="|", end="!\n")
        assert stream.getvalue() == "loss|[1 2]|3!\n"

    def test_writes_to_stderr(self, capsys: pytest.CaptureFixture[str]) -> None:
        tf.print("here")
        assert capsys.readouterr().err == "here\n"

    def test_writes_each_time_that_a_compiled_function_runs(self) -> None:
        stream = io.StringIO()

        @tf.function
        def f(x: Any) -> Any:
            tf.print("x =", x, ("s", {"a": [x]}, None), output_stream=stream)
            return x

        for number in range(2):
            f(jnp.int32(number)).block_until_ready()
        jax.effects_barrier()
        assert stream.getvalue() == "x = 0 (s, {'a': [0]}, None)\nx = 1 (s, {'a': [1]}, None)\n"

    def test_writes_what_the_replicas_return(self) -> None:
        stream, strategy = io.StringIO(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

        ids = strategy.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group)

        @tf.function
        def f(x: Any) -> None:
            results = strategy.run(lambda ids: x + ids, (ids,))
            tf.print(strategy.experimental_local_results(results), results, output_stream=stream)

        f(jnp.int32(4))
        jax.effects_barrier()
        assert stream.getvalue() == "(4, 5) {0: 4, 1: 5}\n"

    @pytest.mark.parametrize("devices", [1, 2])
    def test_writes_a_value_that_replicas_share_once(self, devices: int) -> None:
        stream, strategy = io.StringIO(), tf.distribute.MirroredStrategy(devices)
        with strategy.scope():
            v = tf.Variable([7, 8])
        shared = strategy.reduce("SUM", strategy.run(lambda: tf.constant(1)), axis=None)
        tf.print(v, [strategy.run(v.read_value)], shared, output_stream=stream)
        assert stream.getvalue() == f"[7 8] [[7 8]] {devices}\n"


class TestSwitches:
    def test_do_nothing(self) -> None:
        tf.enable_eager_execution()
        tf.compat.v1.enable_eager_execution(config=None)
        tf.compat.v1.enable_v2_behavior()
        tf.group(tf.no_op())
        with tf.control_dependencies([tf.constant(1)]), tf.name_scope("scope") as name:
            assert name == "scope/"

    def test_eager_unless_traced(self) -> None:
        seen: list[bool] = [tf.executing_eagerly()]
        tf.function(lambda: seen.append(tf.executing_eagerly()))()
        assert seen == [True, False]


class TestDatasetsAsArguments:
    """A loop over a dataset runs as Python, and each replica function in it is compiled once."""

    @staticmethod
    def epoch(strategy: Any, traced: list[int], total: Any) -> Any:
        def step(x: Any) -> Any:
            traced.append(1)
            total.assign_add(tf.reduce_sum(x))
            return tf.reduce_sum(x)

        @tf.function
        def loop(dataset: Any) -> Any:
            found, count = 0.0, 0
            for x in dataset:
                found += strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)
                count += 1
            return found / tf.cast(count, tf.float32)

        return loop

    def test_of_a_distributed_dataset(self) -> None:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
        traced: list[int] = []
        loop = self.epoch(strategy, traced, total)
        data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(12).map(np.float32).batch(4))
        assert [float(loop(data)) for _ in range(2)] == [22.0, 22.0]
        assert (float(total), len(traced)) == (132.0, 1)

    def test_of_a_dataset_of_its_own(self) -> None:
        @tf.function
        def loop(dataset: Any) -> Any:
            return sum(int(x) for x in dataset)

        assert int(loop(tf.data.Dataset.range(5))) == 10

    def test_of_a_method(self) -> None:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

        class Training:
            traced = 0

            def step(self, x: Any) -> Any:
                self.traced += 1
                return tf.reduce_sum(x)

            @tf.function
            def loop(self, dataset: Any) -> Any:
                sums = [strategy.run(self.step, args=(x,)) for x in dataset]
                return sum(float(strategy.reduce("SUM", value, axis=None)) for value in sums)

        training = Training()
        data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(12).map(np.float32).batch(4))
        assert [float(training.loop(data)) for _ in range(2)] == [66.0, 66.0]
        assert training.traced == 1


class TestDatasetsAround:
    """A function that loops over a distributed dataset of the code around it is as if it was passed."""

    @pytest.mark.parametrize("replicas", [1, 2])
    @pytest.mark.parametrize("form", ["for", "comprehension", "enumerate", "zip"])
    def test_of_a_closure(self, replicas: int, form: str) -> None:
        strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
        data = strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensor_slices([5.0, 6.0, 7.0, 8.0]).batch(2)
        )
        traced: list[int] = []

        def step(x: Any) -> Any:
            traced.append(1)
            return x

        def reduced(x: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(step, (x,)), axis=0)

        @tf.function
        def by_for() -> Any:
            total = tf.constant(0.0)
            for x in data:
                total += reduced(x)
            return total

        forms = {
            "for": by_for,
            "comprehension": tf.function(lambda: sum(reduced(x) for x in data)),
            "enumerate": tf.function(lambda: sum(reduced(x) for _, x in enumerate(data))),
            "zip": tf.function(lambda: sum(reduced(x) for _, x in zip(range(9), data, strict=False))),
        }
        assert [float(forms[form]()) for _ in range(2)] == [26.0, 26.0]
        assert len(traced) == 1

    def test_of_a_module(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(globals(), "_data", None)
        with pytest.raises(TypeError, match="NoneType"):
            _loop_over_global()
        data = tf.distribute.get_strategy().experimental_distribute_dataset(tf.data.Dataset.range(5).batch(2))
        monkeypatch.setitem(globals(), "_data", data)
        assert int(_loop_over_global()) == 10

    def test_of_which_it_asks_something_else_is_compiled(self) -> None:
        data = tf.distribute.get_strategy().experimental_distribute_dataset(tf.data.Dataset.range(5).batch(2))
        traced: list[Any] = []
        ask = tf.function(lambda x: traced.append(data.element_spec) or x)
        assert [int(ask(tf.constant(number))) for number in (1, 2)] == [1, 2]
        assert len(traced) == 1

    def test_in_a_function_within_the_hint_fits(self) -> None:
        data = tf.distribute.get_strategy().experimental_distribute_dataset(tf.data.Dataset.range(5).batch(2))

        def within() -> Any:
            return sum(tf.reduce_sum(x) for x in data)

        with pytest.raises(TraceError, match=r"(?s)of a dataset.*HINT: loop outside, and pass batches"):
            tf.function(lambda: within() + 0)()


_data: Any = None


@tf.function
def _loop_over_global() -> Any:
    total = 0
    for x in _data:
        total += tf.reduce_sum(x)
    return total


class TestEagerly:
    @pytest.fixture(autouse=True)
    def compiled_again(self) -> Any:
        yield
        tf.config.run_functions_eagerly(False)

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_functions_run_as_python_while_it_is_on(self, replicas: int) -> None:
        strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
        with strategy.scope():
            total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
        eager: list[bool] = []

        @tf.function
        def within(x: Any) -> Any:
            eager.append(tf.executing_eagerly())
            return x + 1.0 if x > 0 else x  # no array decides in a compiled function

        @tf.function
        def step() -> Any:
            return strategy.reduce("SUM", strategy.run(lambda: total.assign_add(within(2.0)).read_value()), axis=None)

        assert not tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        assert tf.config.functions_run_eagerly()
        for turn in (1, 2):
            step()
            assert float(total) == 3.0 * replicas * turn
        assert eager == [True] * 2 * replicas
        tf.config.run_functions_eagerly(False)
        for _ in range(2):
            step()
        assert eager[2 * replicas :] == [False]

    def test_results_and_types_are_those_of_compiled_functions(self) -> None:
        both: list[Any] = []
        for on in (False, True):
            tf.config.run_functions_eagerly(on)
            both.append(tf.function(lambda x: (x * 2, 1, 2.0))(tf.constant([1.5])))
        assert jax.tree.map(lambda leaf: (leaf.dtype, leaf.shape), both[0]) == jax.tree.map(
            lambda leaf: (leaf.dtype, leaf.shape), both[1]
        )

    def test_a_program_that_is_being_traced_stays_one(self) -> None:
        tf.config.run_functions_eagerly(True)
        eager: list[bool] = []
        within = tf.function(lambda: eager.append(tf.executing_eagerly()))
        jd.function(lambda: (within(), 0))()
        assert eager == [False]


def test_a_function_on_workers_is_of_its_own_kind() -> None:
    """Pickled by its name it would have to be importable on the worker."""
    with threads() as strategy:
        coordinator = jd.coordinator.ClusterCoordinator(strategy)
        doubled = tf.function(lambda x: x * 2.0)

        def work() -> float:
            assert type(doubled).__name__ == "_Function"
            return float(doubled(np.float32(3.0)))

        assert coordinator.schedule(work).fetch() == 6.0
