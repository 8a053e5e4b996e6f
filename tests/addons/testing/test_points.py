"""Points of a program: who is told when one is reached, and that nothing stays when nobody listens any more."""

import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.testing import points
from jaxtribute.errors import ArgumentError


def test_methods_of_the_library_pass_through_points() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    batches = strategy.experimental_distribute_dataset(strategy.experimental_make_numpy_dataset(jnp.arange(4)).batch(2))

    @jd.function
    def inner(x: jd.PerReplica) -> jd.PerReplica:
        return strategy.run(lambda y: y + 1, args=(x,))

    @jd.function
    def step(x: jd.PerReplica) -> object:
        return strategy.reduce("SUM", inner(x), axis=None)

    seen: list[str] = []
    with points.watch({"step", "step:end", "input", "save", "mine"}, seen.append):
        for batch in batches:
            step(batch)  # pyright: ignore[reportArgumentType]
        jd.testing.point("mine")
    assert [name for name in seen if name != "input:end"] == [
        *["input", "step", "step:end"] * 2,
        "input",  # the end of the data
        "mine",
    ]
    step(next(iter(batches)))  # pyright: ignore[reportArgumentType]
    jd.testing.point("mine")
    assert len(seen) == 10


def test_several_may_listen() -> None:
    first: list[str] = []
    second: list[str] = []
    with points.watch({"a"}, first.append):
        with points.watch({"a"}, second.append):
            points.point("a")
        points.point("b")
    assert (first, second) == (["a", "b"], ["a"])


@pytest.mark.parametrize("name", ["", ":end"])
def test_a_point_has_a_name(name: str) -> None:
    with pytest.raises(ArgumentError, match="is no point"):
        points.check(name)
