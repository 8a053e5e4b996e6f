"""What workers agree on: first values and shapes, with the other workers played by the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from jaxtribute._src.core.values.agreement import _broadcast as broadcast  # pyright: ignore[reportPrivateUsage]
from jaxtribute._src.core.values.agreement import all_signatures, first_workers
from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.errors import ShapeError


class Other:
    """Another worker, which answers with what the test says."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self._answer = answer

    def exchange(self, what: str, text: str, /) -> list[str]:
        return [text, self._answer(text)]

    def announce(self, what: str, text: str, /) -> None: ...

    def announced(self, what: str, rank: int, /) -> str | None: ...

    def entering(self, name: str, collectives: Callable[[], Sequence[str]], /) -> None: ...

    def dispatched(self, result: Any, /) -> None: ...

    def waited(self, seconds: float, /) -> None: ...

    def explained(self, error: BaseException, /) -> BaseException:
        return error


MESH = ReplicaMesh(jax.devices()[:2])


def test_equal_values_do_not_travel() -> None:
    value = np.arange(3)
    assert first_workers(value, "w", MESH, Other(lambda text: text)) is value


def test_shapes_that_differ_are_an_error_on_every_worker() -> None:
    with pytest.raises(ShapeError, match=r"variable 'w'.*0: 'int64\[3\]', 1: 'float32\[4\]'.*HINT"):
        first_workers(np.arange(3), "variable 'w'", MESH, Other(lambda _: json.dumps(["float32[4]", "digest"])))


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.int32, np.bool_, np.uint8, np.float16]), arrays.array_shapes(max_side=9)
    )
)
def test_a_value_travels_bit_for_bit(value: Any) -> None:
    found = broadcast(value, MESH)
    assert found.dtype == value.dtype
    assert found.shape == value.shape
    assert found.tobytes() == value.tobytes()


def test_a_value_travels_while_a_function_is_traced() -> None:
    def traced(x: Any) -> Any:
        with jax.ensure_compile_time_eval():  # as where a variable is created meanwhile
            found.append(broadcast(value, MESH))
        return x

    # Of a size of its own: no program of another test is there yet.
    value, found = np.arange(5000, dtype=np.float32), list[Any]()
    jax.make_jaxpr(traced)(1.0)
    np.testing.assert_array_equal(found[0], value)


def test_signatures_come_in_the_order_of_replicas() -> None:
    theirs = json.dumps([[[[5], "float32"], [[6], "float32"]], [None, None]])
    mesh = ReplicaMesh(jax.devices()[:4], Other(lambda _: theirs))
    columns = [[jnp.ones(1), jnp.ones(2)], ["a", "b"]]
    assert all_signatures(columns, "values", mesh) == [
        [((1,), "float32"), ((2,), "float32"), ((5,), "float32"), ((6,), "float32")],
        None,
    ]


def test_alone_nobody_is_asked() -> None:
    assert all_signatures([[jnp.ones(1), jnp.ones(2)]], "values", MESH) == [[((1,), "float32"), ((2,), "float32")]]


def test_workers_with_different_numbers_of_values() -> None:
    mesh = ReplicaMesh(jax.devices()[:4], Other(lambda _: "[]"))
    with pytest.raises(ShapeError, match=r"\[1, 0\].*HINT"):
        all_signatures([[jnp.ones(1)]], "what the replicas gave", mesh)
