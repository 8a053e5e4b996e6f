"""Programs computed on slices of their arrays, against the same programs on whole arrays."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from jaxtribute._src.core.jaxprs.core import is_program
from jaxtribute._src.core.optimizer.updates import NotSliceable, Slice, own_slice, run_on_slices, whole
from jaxtribute._src.core.values.slices import Cut
from ragged import rows
from replicas import mirrored

Program = Callable[..., Any]


def evaluate(fn: Program, arrays: Sequence[Any], replicas: int, *, sliced: Sequence[bool] | None = None) -> list[Any]:
    """`fn(*arrays)` computed on slices, each result whole; NaN or infinity in the padding must not be seen."""
    closed = jax.make_jaxpr(fn)(*arrays)
    flags = sliced or [True] * len(arrays)

    def local(*arrays: Any) -> list[Any]:
        inputs = [poisoned(x, replicas) if flag else x for x, flag in zip(arrays, flags, strict=True)]
        return [whole(x) if isinstance(x, Slice) else x for x in run_on_slices(closed, inputs)]

    spec = PartitionSpec()
    mesh = mirrored(replicas).extended.mesh.mesh
    mapped = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return list(jax.jit(mapped)(*arrays))


def poisoned(array: Any, replicas: int) -> Slice:
    """This replica's slice, with the worst in the padding."""
    piece = own_slice(array, Cut(array.shape, replicas))
    place = jax.lax.axis_index("replica") * piece.data.size + jnp.arange(piece.data.size)
    worst = jnp.nan if jnp.issubdtype(array.dtype, jnp.floating) else 2**30
    return Slice(jnp.where(place < array.size, piece.data, jnp.full_like(piece.data, worst)), piece.cut)


def check(fn: Program, *arrays: Any, replicas: int = 4, sliced: Sequence[bool] | None = None) -> None:
    with jax.numpy_rank_promotion("allow"):
        for got, expected in zip(
            evaluate(fn, arrays, replicas, sliced=sliced), jax.tree.leaves(fn(*arrays)), strict=True
        ):
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


UNARY: dict[str, Program] = {
    "neg": jnp.negative, "abs": jnp.abs, "tanh": jnp.tanh, "log": jnp.log, "sqrt": lambda x: jnp.sqrt(jnp.abs(x)),
    "inverse": lambda x: 1 / x, "square": jnp.square, "cube": lambda x: x**3, "relu": jax.nn.relu,
    "clip": lambda x: jnp.clip(x, -0.5, 0.5), "finite": lambda x: jnp.where(jnp.isfinite(x), x, 7.0),
    "column": lambda x: jnp.reshape(jnp.reshape(x, (-1, 1)), x.shape),
}  # fmt: skip
BINARY: dict[str, Program] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": lambda x, y: x / (1 + jnp.abs(y)),
    "max": jnp.maximum, "where": lambda x, y: jnp.where(x > y, x, y),
}  # fmt: skip
REDUCTIONS: dict[str, Program] = {
    "norm": lambda x: x / jnp.sqrt(1 + jnp.sum(jnp.square(x))), "mean": lambda x: x - jnp.mean(x),
    "max": lambda x: x - jnp.max(x), "min": lambda x: x * (1 + jnp.min(x)),
}  # fmt: skip
steps = st.one_of(
    st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY)), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("binary"), st.sampled_from(sorted(BINARY)), st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.just("reduction"), st.sampled_from(sorted(REDUCTIONS)), st.integers(0, 9), st.just(0)),
)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple).filter(lambda shape: math.prod(shape) >= 4)


@pytest.mark.slow
@settings(max_examples=10, derandomize=True)
@given(shapes, st.lists(steps, min_size=2, max_size=8), st.sampled_from([2, 3, 4]))
def test_random_programs(shape: tuple[int, ...], program: list[Any], replicas: int) -> None:
    def fn(x: Any, y: Any) -> Any:
        values = [x, y, jnp.float32(2) * jnp.ones(shape)]
        for kind, name, first, second in program:
            a, b = values[first % len(values)], values[second % len(values)]
            tame = jnp.tanh(a)  # so that chains neither overflow nor divide by zero
            if kind == "unary":
                values.append(UNARY[name](tame + 2))
            else:
                values.append(BINARY[name](tame, b) if kind == "binary" else REDUCTIONS[name](tame))
        return values[-1], values[len(values) // 2]

    check(fn, jnp.asarray(rows(*shape)), jnp.asarray(rows(*shape, seed=1)), replicas=replicas)


X = jnp.asarray(rows(3, 5))
ALLOWED: dict[str, Program] = {
    "log of the padding": lambda x: jnp.sum(jnp.log(jnp.abs(x))),
    "inverse of the padding": lambda x: jnp.max(1 / (x + 10)) + jnp.min(1 / (x + 10)),
    "negative maximum": lambda x: jnp.max(-jnp.abs(x) - 5),
    "positive minimum": lambda x: jnp.min(jnp.abs(x) + 5),
    "integers": lambda x: (jnp.max((x * 100).astype(jnp.int32) - 1000), jnp.sum((x > 0).astype(jnp.int32))),
    "bfloat16": lambda x: jnp.max(x.astype(jnp.bfloat16) * 2).astype(jnp.float32),
    "a whole result": lambda x: (jnp.float32(3), jnp.ones((2, 2)), x),
    "jit": jax.jit(lambda x: x + jnp.sum(x)),
    "checkpoint": jax.checkpoint(jnp.sin),
    "custom_jvp": jax.nn.silu,
    "a captured array": lambda x: x * jnp.asarray(rows(3, 5, seed=4)),
    "a captured column": lambda x: x * jnp.asarray(rows(3, 1, seed=4)) + jnp.asarray(rows(1, 5, seed=5)),
    "other shapes of it": lambda x: (x.reshape(15), x.reshape(5, 3)[None], jnp.squeeze(x[None], 0)),
    "random numbers": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
}  # fmt: skip
REFUSED: dict[str, Program] = {
    "matmul": lambda x: x @ x.T,
    "transpose": lambda x: x.T,
    "rows' sums": lambda x: jnp.sum(x, 0),
    "broadcast": lambda x: x[None] + jnp.ones((2, 3, 5)),
    "slice": lambda x: x[1:],
    "product": jnp.prod,
    "all": lambda x: jnp.all(jnp.isfinite(x)),
    "argmax": jnp.argmax,
    "sort": lambda x: jnp.sort(x, axis=None),
    "cumsum": lambda x: jnp.cumsum(x, axis=0),
    "cond": lambda x: jax.lax.cond(jnp.sum(x) > 0, lambda: x, lambda: -x),
    "scan": lambda x: jax.lax.scan(lambda c, row: (c + row, None), jnp.zeros(5), x)[0],
    "greatest of truths": lambda x: jax.lax.reduce_max((x > 0), (0, 1)),
}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("name", ALLOWED)
def test_what_slices_allow(name: str) -> None:
    check(ALLOWED[name], X)


@pytest.mark.parametrize("name", REFUSED)
def test_what_they_do_not_allow(name: str) -> None:
    with pytest.raises(NotSliceable):
        evaluate(REFUSED[name], [X], 4)


def test_nan_of_an_element_is_seen() -> None:
    x = X.at[1, 2].set(jnp.nan)
    total, largest = evaluate(lambda x: (jnp.sum(x), jnp.max(x)), [x], 4)
    assert np.isnan(total)
    assert np.isnan(largest)


def test_whole_arguments_beside_slices() -> None:
    check(lambda x, y, s: (x * y + s, y + 1, jnp.sum(x * y)), X, X + 1, jnp.float32(2), sliced=[True, False, False])


@given(st.integers(1, 40), st.integers(1, 9))
def test_slice_sizes(size: int, replicas: int) -> None:
    (each,) = Cut((size,), replicas).piece_shape
    assert each * replicas >= size
    assert (each - 1) * replicas < size


def test_a_slice_keeps_its_shape() -> None:
    closed = jax.make_jaxpr(lambda x: x.reshape(5, 3) + 1)(X)
    assert is_program(closed)
    assert Slice(X.reshape(-1), Cut((3, 5), 1)).shape == (3, 5)
