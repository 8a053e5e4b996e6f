"""Branches and loops that arrays decide write variables in compiled functions as TensorFlow's do."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute.errors import ArgumentError, TraceError


@pytest.fixture
def v() -> Any:
    return tf.Variable([1.0, 2.0])


@pytest.fixture
def count() -> Any:
    return tf.Variable(0)


def compiled(function: Callable[..., Any], is_compiled: bool) -> Callable[..., Any]:
    return tf.function(function) if is_compiled else function


def none(count: Any) -> Any:
    """Zero, once the count has been written."""
    return 0.0 * tf.cast(count, tf.float32)


@pytest.mark.parametrize("is_compiled", [True, False])
class TestBranches:
    @pytest.mark.parametrize(("chosen", "expected"), [(True, [6.0, 6.0]), (False, [5.0, 5.0])])
    def test_each_writes_its_own_variables(
        self, v: Any, count: Any, is_compiled: bool, chosen: bool, expected: list[float]
    ) -> None:
        def step(pred: Any) -> Any:
            v.assign([5.0, 5.0])
            result = tf.cond(pred, lambda: v.assign_add([1.0, 1.0]) * 1, lambda: v + none(count.assign_add(1)))
            return result, v * 1  # what is read after it is what the branch wrote

        for found in compiled(step, is_compiled)(tf.constant(chosen)):
            assert np.asarray(found).tolist() == expected
        assert v.numpy().tolist() == expected
        assert int(count) == (not chosen)

    def test_a_branch_within_a_branch(self, count: Any, is_compiled: bool) -> None:
        def step(x: Any) -> Any:
            return tf.case(
                [(x < 1, lambda: count.assign(1)), (x < 2, lambda: count.assign(2))], lambda: count.assign_add(3)
            )

        seen = [int(compiled(step, is_compiled)(tf.constant(x))) for x in (0, 1, 5)]
        assert seen == [1, 2, 5]
        assert int(count) == 5

    def test_the_last_case_is_the_default(self, count: Any, is_compiled: bool) -> None:
        def step(x: Any) -> Any:
            return tf.case([(x < 1, lambda: count.assign(1)), (x < 2, lambda: count.assign(2))])

        assert int(compiled(step, is_compiled)(tf.constant(9))) == 2

    @pytest.mark.parametrize("form", [list, dict, lambda pairs: list(dict(pairs).values())])
    def test_branches_by_number(self, count: Any, is_compiled: bool, form: Callable[[Any], Any]) -> None:
        branches = form([(0, lambda: count.assign(10)), (1, lambda: count.assign(20))])
        for default, others in ((None, 20), (lambda: count.assign(-1), -1)):
            step = compiled(lambda i, default=default: tf.switch_case(i, branches, default), is_compiled)
            assert [int(step(tf.constant(i))) for i in (0, 1, 2, -1)] == [10, 20, others, others]


def test_branches_have_all_numbers() -> None:
    with pytest.raises(ArgumentError, match="HINT"):
        tf.switch_case(0, {1: lambda: 1})


class Pair(NamedTuple):
    a: Any
    b: Any


class TestLoops:
    @pytest.mark.parametrize("is_compiled", [True, False])
    def test_condition_and_body_see_what_was_written(self, v: Any, count: Any, is_compiled: bool) -> None:
        def body(i: Any) -> Any:
            v.assign_add([1.0, 1.0])
            count.assign(i)
            return (i + 1,)

        def step(most: Any) -> Any:
            return tf.while_loop(lambda i: (i < most) & (v[0] < 4), body, (tf.constant(0),))

        (turns,) = compiled(step, is_compiled)(tf.constant(20))
        assert (int(turns), int(count), v.numpy().tolist()) == (3, 2, [4.0, 5.0])

    def test_the_result_is_of_the_kind_of_the_variables(self) -> None:
        for start, kind in (([1, 2], list), ((1, 2), tuple), (Pair(1, 2), Pair)):
            assert type(tf.while_loop(lambda a, b: a < 5, lambda a, b: (a + b, b), start)) is kind

    def test_limit(self) -> None:
        assert int(tf.while_loop(lambda i: i < 9, lambda i: i + 1, [0], maximum_iterations=3)[0]) == 3


@pytest.mark.parametrize(("pred", "loss", "gradient"), [(True, 9.0, 6.0), (False, 3.0, 1.0)])
def test_gradients_go_through_branches_that_write(count: Any, pred: bool, loss: float, gradient: float) -> None:
    u = tf.Variable(3.0)

    @tf.function
    def step(pred: Any) -> Any:
        def value() -> Any:
            return tf.cond(pred, lambda: u * u + none(count.assign_add(1)), lambda: u * 1.0)

        return jd.value_and_grad(value, [u])()

    value, (found,) = step(tf.constant(pred))
    assert (float(value), float(found), int(count)) == (loss, gradient, int(pred))


class TestReplicas:
    @pytest.fixture
    def two(self) -> jd.Strategy:
        return jd.MirroredStrategy(["CPU:0", "CPU:1"])

    def test_each_writes_its_own_value(self, two: jd.Strategy) -> None:
        with two.scope():
            total = tf.Variable(
                0.0, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.SUM
            )

        def replica_step(x: Any) -> None:
            tf.cond(x > 1, lambda: total.assign_add(x) * 1, lambda: total * 1)

        xs = two.experimental_distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group + 1))
        tf.function(lambda x: two.run(replica_step, args=(x,)))(xs)
        assert float(total) == 2.0

    def test_a_value_that_they_share_is_refused(self, two: jd.Strategy) -> None:
        with two.scope():
            shared = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
        step = tf.function(
            lambda x: two.run(lambda x: tf.cond(x > 1, lambda: shared.assign(x) * 1, lambda: shared * 1), args=(x,))
        )
        with pytest.raises(TraceError, match=r"tf\.cond.*HINT"):
            step(tf.constant(1.0))

    def test_code_of_all_replicas_writes_all_copies(self, two: jd.Strategy) -> None:
        with two.scope():
            shared = tf.Variable(0.0)
        tf.function(lambda x: tf.cond(x > 1, lambda: shared.assign(x) * 1, lambda: shared * 1))(tf.constant(7.0))
        assert [float(copy) for copy in shared.values] == [7.0, 7.0]


def test_a_transformation_of_jax_is_still_refused(count: Any) -> None:
    with pytest.raises(TraceError, match="HINT"):
        jax.jit(lambda pred: tf.cond(pred, lambda: count.assign(1) * 1, lambda: count * 1))(True)


class TestSignaturesOfUnknownRank:
    def test_take_any_shape(self) -> None:
        double = tf.function(lambda x: x * 2, input_signature=(tf.TensorSpec(None, tf.float32),))
        assert float(double(1)) == 2.0
        assert double([1.0, 2.0]).tolist() == [2.0, 4.0]
        assert double(x=np.ones((1, 2), np.float32)).shape == (1, 2)

    def test_refuse_another_type(self) -> None:
        double = tf.function(lambda x: x * 2, input_signature=(tf.TensorSpec(None, tf.float32),))
        with pytest.raises(ArgumentError, match="HINT"):
            double(np.ones(2, np.int32))

    def test_within_nests(self) -> None:
        spec = {"a": [tf.TensorSpec(None, tf.float32), tf.TensorSpec([2], tf.int32)]}
        double = tf.function(lambda d: d["a"][0] * 2, input_signature=(spec,))
        assert float(double({"a": [1.0, np.zeros(2, np.int32)]})) == 2.0
        with pytest.raises(ArgumentError, match="HINT"):
            double({"a": [1.0, np.zeros(3, np.int32)]})


def test_a_compiled_function_returns_texts() -> None:
    assert tf.function(lambda: tf.constant("s"))() == b"s"
    assert tf.function(lambda: tf.constant(["s", "t"]))() == [b"s", b"t"]


def test_scopes_have_names() -> None:
    assert tf.Module("m").name_scope.name == "m/"
    assert tf.name_scope("a").name == "a"
    with tf.name_scope("a") as whole:
        assert whole == "a/"
