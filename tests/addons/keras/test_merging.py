"""What replicas make of variables that no optimizer updates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.keras.merging import contributions, merged, start_of_layers, start_of_metrics
from jaxtribute._src.addons.keras.share import Share
from keras_models import X, Y, crossentropy, keras, under

ROWS = (3, 3, 2, 0)


def variable(aggregation: str, name: str = "v") -> Any:
    return SimpleNamespace(aggregation=aggregation, name=name)


def brought_together(four: jd.Strategy, variables: list[Any], values: list[Any], change: Any) -> list[Any]:
    """The new values, where replica i with `ROWS[i]` examples changes what it starts from by `change(start, i)`."""

    @jd.function
    def run() -> Any:
        def replica(rows: Any) -> Any:
            context = jd.get_replica_context()
            assert context is not None
            share = Share(context, 1, 8)
            object.__setattr__(share, "rows", rows)  # an array here: each replica has another number
            start = start_of_metrics(variables, start_of_layers(variables, values, share), share)
            ends = [change(one, context.replica_id_in_sync_group) for one in start]
            given = contributions(variables, start, ends, share)
            return merged(variables, values, context.all_reduce("SUM", given), share)

        rows = four.experimental_distribute_values_from_function(
            lambda context: jnp.float32(ROWS[context.replica_id_in_sync_group])
        )
        return four.run(replica, (rows,))

    return [np.asarray(value) for value in run()]


def test_each_aggregation(four: jd.Strategy) -> None:
    kinds = ["sum", "mean", "none", "only_first_replica"]
    found = brought_together(
        four, [variable(kind) for kind in kinds], [jnp.float32(10)] * 4, lambda start, i: start + 1 + i
    )
    mean = 10 + sum(rows * (1 + i) for i, rows in enumerate(ROWS)) / 8
    np.testing.assert_allclose(found, [10 + 1 + 2 + 3 + 4, mean, mean, 11])


def test_integers_come_from_the_first_replica_bit_by_bit(four: jd.Strategy) -> None:
    values = [jnp.uint32(0xFFFF_FFF0), jnp.int32(-5), jnp.int8(3), jnp.bool_(True)]

    def change(start: Any, i: Any) -> Any:
        return ~start if start.dtype == jnp.bool_ else start + (7 + i).astype(start.dtype)

    found = brought_together(four, [variable("none")] * 4, values, change)
    assert [int(value) for value in found] == [0xFFFF_FFF7, 2, 10, 0]
    assert [value.dtype for value in found] == [value.dtype for value in values]


def test_what_nobody_writes_stays(four: jd.Strategy) -> None:
    values = [jnp.float32(1), jnp.float32(2)]
    kinds = [variable("none"), variable("sum")]
    share = Share(jd.get_replica_context() or four, 1, 2)  # type: ignore[arg-type]
    given = contributions(kinds, values, [values[0], None], share)
    assert given == [None, None]
    assert merged(kinds, values, given, share) == values


def test_replicas_draw_different_numbers_and_the_first_those_of_one_device(four: jd.Strategy) -> None:
    seed = variable("none", "seed_generator_state")
    state = jnp.asarray([7, 3], jnp.uint32)
    alone = Share(jd.get_replica_context(), 1, 1)  # type: ignore[arg-type]
    assert start_of_layers([seed], [state], alone)[0] is state

    @jd.function
    def starts() -> Any:
        def replica() -> Any:
            context = jd.get_replica_context()
            assert context is not None
            return start_of_layers([seed], [state], Share(context, 1, 4))[0]

        return four.run(replica)

    found = [np.asarray(one) for one in starts().values]
    np.testing.assert_array_equal(found[0], [7, 3])
    assert len({int(one[0]) for one in found}) == 4
    assert {int(one[1]) for one in found} == {3}


@pytest.mark.slow
def test_generators_go_on_as_on_one_device(four: jd.Strategy) -> None:
    def build() -> Any:
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Input((8,)), keras.layers.Dropout(0.5, seed=4), keras.layers.Dense(3)]
        model = keras.Sequential(layers)
        model.compile("sgd", crossentropy())
        return model

    def use(model: Any) -> Any:
        first = float(model.train_on_batch(X[:8], Y[:8]))
        second = float(model.train_on_batch(X[:8], Y[:8]))
        return [model.layers[0].seed_generator.state.numpy().tolist(), first != second]

    plain, found = use(build()), under(four, build, use)
    assert found == plain == [[4, 2], True]
