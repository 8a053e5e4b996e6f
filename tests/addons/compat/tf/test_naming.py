"""Names and creators of variables. The names are those that TensorFlow 2.21 gives."""

from typing import Any

import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf

STRATEGIES = [
    jd.get_strategy,
    lambda: jd.OneDeviceStrategy("CPU:0"),
    lambda: jd.MirroredStrategy(["CPU:0", "CPU:1"]),
    lambda: jd.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"]),
]


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> jd.Strategy:
    return request.param()


class TestNameScope:
    def test_stands_before_names(self, strategy: jd.Strategy) -> None:
        with strategy.scope(), tf.name_scope("a") as outer:
            with tf.name_scope("b") as inner:
                named = tf.Variable(1.0, name="v")
            with tf.name_scope("c/d/") as whole:
                unnamed = tf.Variable(1.0)
            with tf.name_scope("") as empty:
                bare = tf.Variable(1.0, name="v")
        assert [outer, inner, whole, empty] == ["a/", "a/b/", "c/d/", ""]
        assert [v.name for v in (named, unnamed, bare)] == ["a/b/v:0", "c/d/Variable:0", "v:0"]
        assert tf.Variable(1.0, name="v").name == "v:0"

    def test_outside_of_the_strategys_scope_counts_too(self, strategy: jd.Strategy) -> None:
        with tf.name_scope("a"), strategy.scope():
            assert tf.Variable(1.0, name="v").name == "a/v:0"

    @pytest.mark.parametrize("compiled", [False, True])
    def test_a_replicas_function_begins_without(self, strategy: jd.Strategy, compiled: bool) -> None:
        names: list[str] = []
        made: list[Any] = []

        def step() -> Any:
            # A second call, as of a compiled function, makes none.
            if len(made) < strategy.num_replicas_in_sync:
                with tf.name_scope("in"):
                    made.append(tf.Variable(1.0, name="v"))
                names.append(made[-1].name)
            return 0

        def run() -> Any:
            return strategy.run(step)

        with strategy.scope(), tf.name_scope("out"):
            (tf.function(run) if compiled else run)()
        alone = strategy.num_replicas_in_sync == 1 and not jd.has_strategy()
        assert set(names) <= {"in/v:0"} | ({"out/in/v:0"} if alone else set())

    def test_a_name_ends_with_its_block(self) -> None:
        with pytest.raises(ValueError, match="mine"), tf.name_scope("a"):
            raise ValueError("mine")
        assert tf.Variable(1.0, name="v").name == "v:0"


class TestVariableCreatorScope:
    def test_a_creator_sees_and_changes_the_arguments(self, strategy: jd.Strategy) -> None:
        seen: list[dict[str, Any]] = []

        def creator(following: Any, **arguments: Any) -> Any:
            seen.append(arguments)
            return following(**{**arguments, "name": "mine", "trainable": False})

        with strategy.scope(), tf.variable_creator_scope(creator):
            made = tf.Variable([1.0, 2.0], name="v", aggregation=tf.VariableAggregation.SUM)
        assert (made.name, made.trainable, made.aggregation) == ("mine:0", False, tf.VariableAggregation.SUM)
        assert [(one["name"], one["initial_value"]) for one in seen] == [("v", [1.0, 2.0])]
        assert {"dtype", "shape", "synchronization", "aggregation", "constraint", "validate_shape"} <= set(seen[0])
        assert tf.Variable(1.0, name="v").name == "v:0"
        assert len(seen) == 1

    def test_the_innermost_is_asked_first(self) -> None:
        order: list[int] = []

        def numbered(number: int) -> Any:
            def creator(following: Any, **arguments: Any) -> Any:
                order.append(number)
                return following(**arguments)

            return creator

        with tf.variable_creator_scope(numbered(1)), tf.variable_creator_scope(numbered(2)):
            tf.Variable(1.0)
        assert order == [2, 1]

    def test_what_a_creator_returns_is_the_variable(self) -> None:
        with tf.variable_creator_scope(lambda following, **arguments: 7):
            assert tf.Variable(1.0) == 7
