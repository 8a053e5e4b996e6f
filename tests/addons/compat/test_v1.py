"""The names and methods of version 1."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.compat.legacy import StepContext
from jaxtribute.compat import v1
from jaxtribute.compat.tf.compat.v1 import ConfigProto
from jaxtribute.errors import ArgumentError, OutOfRangeError
from replicas import components
from thread_engine import start_in_threads


@pytest.fixture
def strategy() -> v1.MirroredStrategy:
    return v1.MirroredStrategy(["CPU:0", "CPU:1"])


def rows(count: int = 8) -> Any:
    return np.arange(count, dtype=np.float32)


def batches(strategy: jd.Strategy, size: int = 4) -> Any:
    return strategy.experimental_make_numpy_dataset(rows()).batch(size)


def iterator(strategy: jd.Strategy) -> Any:
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        return strategy.make_dataset_iterator(batches(strategy))


class TestStrategies:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: v1.MirroredStrategy(["CPU:0", "CPU:1"]),
            lambda: v1.OneDeviceStrategy("/cpu:1"),
            lambda: v1.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
            v1.experimental.MultiWorkerMirroredStrategy,
        ],
    )
    def test_are_both_of_version_1_and_of_this_library(self, make: Callable[[], v1.Strategy]) -> None:
        strategy = make()
        assert isinstance(strategy, v1.Strategy)
        assert isinstance(strategy, jd.Strategy)
        assert strategy.extended.strategy is strategy

    def test_steps_per_run_is_what_was_given(self) -> None:
        with jd.config.alias_devices({"TPU:0": "CPU:2", "TPU:1": "CPU:3"}):
            assert v1.experimental.TPUStrategy().steps_per_run == 1
            strategy = v1.experimental.TPUStrategy(steps_per_run=20, device_assignment=["TPU:1"])
            assert isinstance(strategy, (v1.Strategy, jd.experimental.TPUStrategy))
            assert strategy.steps_per_run == 20
            assert strategy.extended.worker_devices == ("/job:localhost/replica:0/task:0/device:TPU:1",)

    def test_reduce_needs_no_axis(self, strategy: v1.MirroredStrategy) -> None:
        value = strategy.run(lambda: jnp.ones(3))
        assert strategy.reduce("SUM", value).tolist() == [2.0, 2.0, 2.0]

    def test_reduce_takes_an_axis(self, strategy: v1.MirroredStrategy) -> None:
        value = strategy.run(lambda: jnp.ones(3))
        assert float(strategy.reduce(v1.ReduceOp.SUM, value, axis=0)) == 6.0

    def test_numpy_dataset_takes_a_session(self, strategy: v1.MirroredStrategy) -> None:
        dataset = strategy.experimental_make_numpy_dataset(rows(), session=object())
        assert len(dataset) == 8

    def test_loss_reduction_is_sum(self) -> None:
        assert v1.get_loss_reduction() is v1.ReduceOp.SUM

    def test_parameter_servers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = v1.experimental.ParameterServerStrategy
        with kind.of_cluster(start_in_threads(1, 1)) as strategy, strategy.scope():
            assert isinstance(strategy, jd.ParameterServerStrategy)
            assert isinstance(strategy, v1.Strategy)
            variable = jd.Variable(2.0)
            assert float(strategy.reduce("SUM", variable)) == 2.0
        monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
        with pytest.raises(ArgumentError, match="0 parameter servers"):
            kind()

    def test_a_name_that_tensorflow_has_not_either_is_told_without_a_reason(self) -> None:
        with pytest.raises(AttributeError, match="has no 'nonsense'"):
            _ = v1.nonsense

    def test_the_functions_are_those_of_this_library(self, strategy: v1.MirroredStrategy) -> None:
        with strategy.scope():
            assert v1.get_strategy() is strategy
            assert v1.has_strategy()
            assert v1.in_cross_replica_context()
        assert v1.get_replica_context() is not None


class TestIterators:
    def test_dataset_iterator_splits_global_batches(self, strategy: v1.MirroredStrategy) -> None:
        first = iterator(strategy)
        first.initialize()
        assert components(first.get_next()) == [[0.0, 1.0], [2.0, 3.0]]
        first.close()

    def test_initialize_is_not_needed_and_starts_again(self, strategy: v1.MirroredStrategy) -> None:
        elements = iterator(strategy)
        assert components(elements.get_next()) == [[0.0, 1.0], [2.0, 3.0]]
        assert elements.initialize() == []
        assert components(elements.get_next()) == [[0.0, 1.0], [2.0, 3.0]]
        elements.close()

    def test_get_next_ends_with_out_of_range(self, strategy: v1.MirroredStrategy) -> None:
        elements = iterator(strategy)
        for _ in range(2):
            elements.get_next()
        with pytest.raises(OutOfRangeError):
            elements.get_next()

    def test_is_an_iterator_of_python(self, strategy: v1.MirroredStrategy) -> None:
        assert len(list(iterator(strategy))) == 2

    def test_input_fn_makes_batches_of_the_replicas_size(self, strategy: v1.MirroredStrategy) -> None:
        def input_fn(context: v1.InputContext) -> Any:
            assert context.num_input_pipelines == 1
            return batches(strategy, context.get_per_replica_batch_size(4))

        with pytest.warns(DeprecationWarning, match="is deprecated"):
            elements = strategy.make_input_fn_iterator(input_fn)
        assert components(elements.get_next()) == [[0.0, 1.0], [2.0, 3.0]]
        elements.close()

    def test_input_fn_is_called_for_each_replica_where_that_is_asked_for(self, strategy: v1.MirroredStrategy) -> None:
        seen: list[int] = []

        def input_fn(context: v1.InputContext) -> Any:
            seen.append(context.input_pipeline_id)
            return batches(strategy, 2)

        with pytest.warns(DeprecationWarning, match="is deprecated"):
            elements = strategy.make_input_fn_iterator(input_fn, v1.InputReplicationMode.PER_REPLICA)
        assert components(elements.get_next()) == [[0.0, 1.0], [0.0, 1.0]]
        assert seen == [0, 1]
        elements.close()

    def test_experimental_run_takes_the_next_element(self, strategy: v1.MirroredStrategy) -> None:
        elements = iterator(strategy)
        with strategy.scope(), pytest.warns(DeprecationWarning, match="is deprecated"):
            result = strategy.experimental_run(lambda x: x * 2.0, elements)
        assert components(result) == [[0.0, 2.0], [4.0, 6.0]]
        elements.close()

    def test_experimental_run_without_an_iterator(self, strategy: v1.MirroredStrategy) -> None:
        with pytest.warns(DeprecationWarning, match="is deprecated"):
            assert components(strategy.experimental_run(lambda: jnp.ones(()))) == [1.0, 1.0]

    def test_are_reachable_on_strategies_of_version_2(self) -> None:
        elements = iterator(jd.MirroredStrategy(["CPU:0", "CPU:1"]))
        assert components(elements.get_next()) == [[0.0, 1.0], [2.0, 3.0]]
        elements.close()


class TestDeprecation:
    @pytest.mark.parametrize(
        "call",
        [
            lambda s: s.unwrap(1),
            lambda s: s.configure(),
            lambda s: s.update_config_proto(ConfigProto()),
            lambda s: s.make_dataset_iterator(batches(s)),
            lambda s: s.make_input_fn_iterator(lambda _: batches(s)),
            lambda s: s.experimental_run(lambda: 1),
            lambda s: s.experimental_distribute_datasets_from_function(lambda _: batches(s)),
            lambda s: s.colocate_vars_with(variable_of(s)),
            lambda s: s.extended.experimental_run_steps_on_iterator(lambda context, x: None, None, iterations=0),
        ],
    )
    def test_one_warning_each_with_a_remedy(self, strategy: v1.Strategy, call: Callable[[v1.Strategy], Any]) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(strategy)
        assert [warning.category for warning in caught] == [DeprecationWarning]
        assert "HINT" in str(caught[0].message)
        assert caught[0].filename == __file__

    def test_none_for_what_is_not_deprecated(self, strategy: v1.MirroredStrategy) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            strategy.run(lambda: 1)
            strategy.experimental_local_results(1)
            strategy.group(jnp.ones(2))
        assert caught == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_iterators_are_not_made_in_the_scope_of_another_strategy() -> None:
    strategy = v1.OneDeviceStrategy("CPU:1")
    with v1.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        for make in (strategy.make_dataset_iterator, lambda data: strategy.make_input_fn_iterator(lambda _: data)):
            with pytest.raises(jd.errors.StrategyMixError, match="HINT"):
                make(batches(strategy))


def variable_of(strategy: jd.Strategy) -> jd.Variable:
    with strategy.scope():
        return jd.Variable(1.0)


class TestConfiguration:
    def test_config_proto_is_copied_and_unchanged(self, strategy: v1.MirroredStrategy) -> None:
        given = ConfigProto(allow_soft_placement=True, device_filters=["/job:ps"])
        with pytest.warns(DeprecationWarning, match="is deprecated"):
            returned = strategy.update_config_proto(given)
        assert returned == given
        assert returned is not given
        assert returned.device_filters is not given.device_filters  # pyright: ignore[reportAttributeAccessIssue]

    def test_config_proto_prints_its_fields(self) -> None:
        assert repr(ConfigProto(log_device_placement=True)) == "ConfigProto(log_device_placement=True)"

    def test_config_protos_with_other_fields_differ(self) -> None:
        first = ConfigProto(a=1)
        assert first != ConfigProto(a=2)
        assert copy.copy(first) == first

    def test_a_cluster_is_refused(self, strategy: v1.MirroredStrategy) -> None:
        refused = pytest.raises(ArgumentError, match="when it is made")
        with pytest.warns(DeprecationWarning, match="is deprecated"), refused:
            strategy.configure(cluster_spec={"worker": ["a:1", "b:1"]}, task_type="worker", task_id=0)


class TestExtended:
    def test_constants_of_a_single_worker(self, strategy: v1.MirroredStrategy) -> None:
        extended = strategy.extended
        assert not extended.experimental_between_graph
        assert extended.experimental_should_init
        assert extended.should_checkpoint
        assert extended.should_save_summary

    def test_numpy_dataset(self, strategy: v1.MirroredStrategy) -> None:
        assert len(strategy.extended.experimental_make_numpy_dataset(rows(), session=None)) == 8

    def test_steps_on_an_iterator_keep_the_last_outputs(self, strategy: v1.MirroredStrategy) -> None:
        def step(context: StepContext, element: Any) -> None:
            loss = strategy.run(jnp.sum, (element,))
            context.set_last_step_output("loss", loss, reduce_op="SUM")
            context.set_non_tensor_output("note", "done")

        elements = iterator(strategy)
        with pytest.warns(DeprecationWarning, match="is deprecated"):
            context = strategy.extended.experimental_run_steps_on_iterator(step, elements, 2, {"before": 1})
        assert float(context.last_step_outputs["loss"]) == 4 + 5 + 6 + 7
        assert context.last_step_outputs["before"] == 1
        assert context.non_tensor_outputs == {"note": "done"}
        elements.close()

    def test_update_non_slot_calls_once(self, strategy: v1.MirroredStrategy) -> None:
        calls: list[int] = []
        with strategy.scope():
            strategy.extended.update_non_slot(strategy.extended.non_slot_devices([]), calls.append, (3,))
        assert calls == [3]

    def test_update_non_slot_beside_a_variable(self, strategy: v1.MirroredStrategy) -> None:
        variable = variable_of(strategy)
        with strategy.scope():
            result = strategy.extended.update_non_slot(variable, lambda x: x + 1, (3,), group=True)
        assert result == 4

    def test_update_non_slot_ungrouped_gives_components(self, strategy: v1.MirroredStrategy) -> None:
        assert strategy.extended.update_non_slot((), lambda: 5, group=False) == (5,)

    def test_update_non_slot_in_the_scope_of_another_strategy(self, strategy: v1.MirroredStrategy) -> None:
        with jd.OneDeviceStrategy("CPU:0").scope(), pytest.raises(RuntimeError, match=r"mixing .*HINT"):
            strategy.extended.update_non_slot((), lambda: 5)


def test_an_input_function_may_return_a_function_that_gives_elements(strategy: v1.MirroredStrategy) -> None:
    """Called for each replica of each step, as in TensorFlow, until it says that there is no more."""
    given = iter(range(6))
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        found = strategy.make_input_fn_iterator(lambda context: lambda: np.float32(next(given)))
    assert [components(found.get_next()) for _ in range(3)] == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    with pytest.raises(OutOfRangeError):
        found.get_next()
