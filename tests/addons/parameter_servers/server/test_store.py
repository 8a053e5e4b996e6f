"""One server's arrays: versions, operations in order of arrival, updates of rows, pushes that count once."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute._src.addons.parameter_servers.server.store import Store
from jaxtribute._src.core.optimizer.slots import optax_rules
from jaxtribute.errors import ArgumentError
from parameter_servers.clusters import float32, int32

RATE = 0.5


def store(*values: Any, transform: Any = None) -> Store:
    """A store with shards 0, 1, ... of these values."""
    made = Store(lambda _: (transform, list(range(len(values)))))
    made.create({"keys": list(range(len(values)))}, [np.asarray(value) for value in values])
    return made


def make_optimizer(of: Store, params: list[int], slots: list[int], owners: list[int | None], number: int = 0) -> None:
    """Makes an optimizer whose shards are one parameter each, and whose slots are one leaf each."""
    described = {"params": params, "places": params, "slots": slots, "leaves": slots, "owners": owners}
    of.optimizer({"id": number, **described}, [])


def value(of: Store, key: int = 0) -> np.ndarray:
    return of.exchange({"pull": [[key, 0]]}, []).arrays[0]


def push(to: Store, kind: str, *arrays: Any, key: int = 0, **header: Any) -> None:
    to.exchange({"ops": [[kind, key, len(arrays)]], **header}, [np.asarray(array) for array in arrays])


def test_operations_apply_in_order_of_arrival() -> None:
    kept = store(float32([1, 2]))
    push(kept, "add", float32([1, 1]))
    push(kept, "sub", float32([0, 5]))
    np.testing.assert_array_equal(value(kept), [2, -2])
    push(kept, "assign", float32([7, 7]))
    np.testing.assert_array_equal(value(kept), [7, 7])


def test_a_move_writes_what_nobody_has_changed_and_adds_the_difference_elsewhere() -> None:
    kept = store(float32([np.inf, np.nan, 1e9, 5]))
    push(kept, "move", float32([np.inf, np.nan, 1e9, 3]), float32([0.5, 2, 1, 4]))
    np.testing.assert_array_equal(value(kept), [0.5, 2, 1, 6])
    counts = store(np.array([7, 2**32 - 1], np.uint32), np.array([True, False]))
    push(counts, "move", np.array([5, 2**32 - 1], np.uint32), np.array([6, 0], np.uint32))
    push(counts, "move", np.array([True, True]), np.array([False, True]), key=1)
    assert value(counts).tolist() == [8, 0]
    assert value(counts, 1).tolist() == [False, True]


def test_what_has_not_changed_is_not_sent_again() -> None:
    kept = store(float32(1), float32(2))
    versions = kept.exchange({"pull": [[0, 0], [1, 0]]}, []).header["v"]
    push(kept, "add", float32(1), key=1)
    answer = kept.exchange({"pull": [[0, versions[0]], [1, versions[1]]]}, [])
    assert [float(array) for array in answer.arrays] == [3.0]
    assert answer.header["v"][0] == versions[0]
    assert answer.header["v"][1] > versions[1]


def test_a_value_that_was_sent_never_changes_afterwards() -> None:
    kept = store(np.zeros((3, 2), np.float32))
    before = value(kept)
    push(kept, "scatter_add", int32([1]), np.ones((1, 2), np.float32))
    push(kept, "add", np.ones((3, 2), np.float32))
    assert not before.any()
    np.testing.assert_array_equal(value(kept), [[1, 1], [2, 2], [1, 1]])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("scatter_add", [1, 8, 3]),
        ("scatter_sub", [1, -4, 3]),
        ("scatter_mul", [1, 18, 3]),
        ("scatter_div", [1, 2 / 9, 3]),
        ("scatter_min", [1, 2, 3]),
        ("scatter_max", [1, 3, 3]),
        ("scatter_update", [1, 3, 3]),
    ],
)
def test_rows_are_written_where_they_are(kind: str, expected: list[float]) -> None:
    kept = store(float32([1, 2, 3]))
    push(kept, kind, int32([1, 1]), float32([3, 3]))
    np.testing.assert_allclose(value(kept), expected, rtol=1e-6)


def test_a_push_counts_once_until_its_closure_has_ended() -> None:
    kept = store(np.int32(0))
    for _ in range(3):
        push(kept, "add", np.int32(1), once=[7, 0])
    push(kept, "add", np.int32(1), once=[7, 1])
    assert int(value(kept)) == 2
    push(kept, "add", np.int32(1), once=[9, 0], floor=9)
    push(kept, "add", np.int32(1), once=[7, 2])  # of a closure that has ended: a worker that was given up
    assert int(value(kept)) == 3
    assert kept.state()[0]["applied"] == [(9, 0)]


def test_rows_that_are_asked_for() -> None:
    kept = store(np.arange(12, dtype=np.float32).reshape(6, 2))
    answer = kept.exchange({"rows": [0]}, [int32([4, 0, 4])])
    np.testing.assert_array_equal(answer.arrays[0], [[8, 9], [0, 1], [8, 9]])


@pytest.mark.parametrize("transform", [optax.sgd(RATE, momentum=0.9), optax.adam(RATE), optax.adagrad(RATE)])
def test_an_optimizer_updates_as_optax_does(transform: Any) -> None:
    params = [float32([1, 2]), np.ones((2, 2), np.float32)]
    leaves = jax.tree.leaves(transform.init([jnp.asarray(param) for param in params]))
    kept = store(*params, transform=transform)
    slots = list(range(10, 10 + len(leaves)))
    make_optimizer(kept, [0, 1], slots, [None] * len(leaves), number=5)
    state: Any = transform.init(params)
    expected: Any = params
    for step in range(3):
        grads = [np.full_like(param, step + 1) for param in params]
        kept.exchange({"ops": [["optimizer", 5, 2, [1, 1]]]}, grads)
        with optax_rules():
            updates, state = transform.update(grads, state, expected)
            expected = optax.apply_updates(expected, updates)
    np.testing.assert_allclose(value(kept, 0), expected[0], rtol=1e-5)
    np.testing.assert_allclose(value(kept, 1), expected[1], rtol=1e-5)


@functools.cache
def table_with_momentum() -> Store:
    """A table and its slot, with programs that stay compiled from one example to the next."""
    kept = store(np.zeros((20, 2), np.float32), transform=optax.sgd(RATE, momentum=0.9))
    make_optimizer(kept, [0], [1], [0])
    return kept


@settings(max_examples=15)
@given(ids=st.lists(st.integers(0, 19), min_size=1, max_size=40, unique=True))
def test_rows_of_a_table_are_updated_with_their_slots_and_no_others(ids: list[int]) -> None:
    table = np.arange(40, dtype=np.float32).reshape(20, 2)
    kept = table_with_momentum()
    kept.create({"keys": [0, 1]}, [table, np.zeros_like(table)])
    rows = np.ones((len(ids), 2), np.float32)
    for _ in range(2):
        kept.exchange({"ops": [["optimizer", 0, 2, [2]]]}, [int32(ids), rows])
    expected, momentum = table.copy(), np.zeros_like(table)
    expected[ids] -= RATE * (1 + 1.9)
    momentum[ids] = 1.9
    np.testing.assert_allclose(value(kept, 0), expected, rtol=1e-6)
    np.testing.assert_allclose(value(kept, 1), momentum, rtol=1e-6)


def test_a_state_goes_over_to_another_server() -> None:
    transform = optax.adam(RATE)
    kept = store(float32([1, 2]), transform=transform)
    make_optimizer(kept, [0], [1, 2, 3], [None, 0, 0])
    kept.exchange({"ops": [["optimizer", 0, 1, [1]]], "once": [3, 0]}, [float32([1, 1])])
    header, arrays = kept.state()
    other = store(float32([9, 9]), transform=transform)
    seen = other.exchange({"pull": [[0, 0]]}, []).header["v"][0]
    other.load(header, arrays)
    assert other.exchange({"pull": [[0, seen]]}, []).arrays, "an older version passes for the current one"
    for one in (kept, other):
        one.exchange({"ops": [["optimizer", 0, 1, [1]]], "once": [3, 0]}, [float32([1, 1])])  # is applied already
        one.exchange({"ops": [["optimizer", 0, 1, [1]]], "once": [3, 1]}, [float32([1, 1])])
    np.testing.assert_array_equal(value(kept), value(other))
    assert int(value(other, 1)) == 2


def test_a_table_is_saved_and_restored_without_a_copy() -> None:
    kept, table = store(), np.zeros((6, 2), np.float32)
    kept.create_rows(0, table)
    header, arrays = kept.state(lent=True)
    assert np.shares_memory(arrays[0], table)
    other, own = store(float32(1)), table.copy()
    other.load(header, [own])
    push(other, "scatter_add", int32([1]), np.ones((1, 2), np.float32))
    assert own.sum() == 2, "its rows are written elsewhere than where they were read"
    own.flags.writeable = False
    other.load(header, [own])
    push(other, "scatter_add", int32([1]), np.ones((1, 2), np.float32))
    assert own.sum() == 2


def test_an_unknown_shard_is_an_error() -> None:
    kept = store(float32(1))
    kept.delete({"keys": [0]}, [])
    with pytest.raises(ArgumentError, match="there is no shard 0 among 0"):
        value(kept)
