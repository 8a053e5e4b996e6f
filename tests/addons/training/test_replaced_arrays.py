"""Arrays that users keep beside variables, which replicas replace by themselves."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from replicas import mirrored

ROWS = np.arange(4, dtype=np.float32)


class Box:
    """What a user may keep state in."""

    def __init__(self) -> None:
        self.x: Any = jnp.zeros(())
        self.inner: dict[str, Any] = {"means": [np.zeros(())]}

    def add(self, x: Any) -> None:
        self.x = self.x + x.sum()


def _attribute(box: Box, x: Any) -> None:
    box.x = box.x + x.sum()


def _deep(box: Box, x: Any) -> None:
    box.inner["means"][0] = x.mean()


def _in_a_cell() -> Callable[[Box, Any], None]:
    total: Any = jnp.zeros(())

    def add(_: Box, x: Any) -> None:
        nonlocal total
        total = total + x.sum()

    return add


def _added(box: Box, x: Any) -> None:
    box.inner["new"] = x.sum()
    box.inner["means"].append(x.sum())


STATES: dict[str, tuple[Callable[[], Callable[[Box, Any], None]], str | None]] = {
    "an attribute": (lambda: _attribute, "box.x"),
    "a method": (lambda: Box.add, "box.x"),
    "a list in a dictionary": (lambda: _deep, "box.inner['means'][0]"),
    "a variable of a closure": (_in_a_cell, "total"),
    "what is read": (lambda: lambda box, x: None, None),
    "what is added": (lambda: _added, None),
}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", STATES)
def test_arrays_that_replicas_replace_are_told(name: str, compiled: bool) -> None:
    make, place = STATES[name]
    write, box = make(), Box()

    def by_closure(x: Any) -> Any:
        write(box, x)
        return x

    def by_argument(x: Any, box: Box) -> Any:
        write(box, x)
        return x

    for replicas in (1, 2):
        strategy = mirrored(replicas)
        for fn, others in ((by_closure, ()), (by_argument, (box,))):
            write = make()
            box.__init__()

            def step(rows: Any, strategy: Any = strategy, fn: Any = fn, others: Any = others) -> Any:
                return strategy.run(fn, (rows, *others))

            rows = next(iter(strategy.experimental_distribute_dataset([ROWS])))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                (jd.function(step) if compiled else step)(rows)
            texts = [str(warning.message) for warning in told]
            if place is None or replicas == 1:
                assert texts == []
                continue
            what = "holds what was traced" if compiled else "was replaced while 2 replicas ran"
            # Of an argument the name is that of its class.
            name_there = place if fn is by_closure else place.replace("box", "Box")
            assert len(texts) == 1
            assert texts[0].startswith(name_there)
            assert what in texts[0]
            assert "HINT: make it a variable" in texts[0]


def test_an_array_of_several_replicas_from_around_the_function() -> None:
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(4)], devices_per_replica=2)
    table = jax.device_put(ROWS, strategy.extended.mesh.replicated)
    rows = next(iter(strategy.experimental_distribute_dataset([ROWS])))
    with pytest.raises(ValueError, match="mesh") as refused:
        jd.function(lambda rows: strategy.run(lambda x: table[x.astype(np.int32)].sum(), (rows,)))(rows)
    assert "HINT: pass arrays that lie elsewhere" in refused.value.__notes__[0]
    step = jd.function(lambda rows, table: strategy.run(lambda x, t: t[x.astype(np.int32)].sum(), (rows, table)))
    np.testing.assert_array_equal(strategy.experimental_local_results(step(rows, table)), [1, 5])
