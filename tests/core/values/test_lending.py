"""Arrays on loan to saves: when a step may have the memory, and what the save then reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core.values import copies, stored
from jaxtribute._src.core.values.stored import Lease, lent, prepare_donation


def made(value: float = 1.0) -> jd.Variable:
    return jd.Variable(np.full(3, value, np.float32))


def donation(variable: jd.Variable) -> jax.Array:
    """The array, ready to be given up."""
    prepare_donation([variable])
    return variable.stored


def test_a_lease_that_is_given_back_leaves_no_trace() -> None:
    variable = made()
    lease = variable.lease()
    assert id(variable) in lent
    assert lease.take() is variable.stored
    lease.give_back()
    assert id(variable) not in lent
    array = variable.stored
    assert donation(variable) is array


def test_a_step_that_comes_first_gets_the_array_and_the_lease_a_copy() -> None:
    variable = made()
    lease, array = variable.lease(), variable.stored
    assert donation(variable) is array
    assert id(variable) not in lent
    array.delete()
    np.testing.assert_array_equal(lease.take(), [1, 1, 1])
    lease.give_back()


def test_a_step_that_comes_while_the_array_is_read_gets_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_PATIENCE_S", 0.0)
    variable = made()
    lease = variable.lease()
    taken = lease.take()
    mine = donation(variable)
    assert mine is not taken
    mine.delete()
    np.testing.assert_array_equal(taken, [1, 1, 1])
    lease.give_back()
    assert id(variable) not in lent


@pytest.mark.parametrize("user_first", [False, True])
def test_an_array_that_the_user_holds_stays_lent(user_first: bool) -> None:
    variable = made()
    if user_first:
        held = variable.peek()
        lease = variable.lease()
    else:
        lease = variable.lease()
        held = variable.peek()
    lease.give_back()
    assert id(variable) in lent
    donation(variable).delete()
    np.testing.assert_array_equal(held, [1, 1, 1])


def test_two_saves_at_a_time_keep_it_lent_until_the_next_step() -> None:
    variable = made()
    first, second = variable.lease(), variable.lease()
    first.give_back()
    assert id(variable) in lent
    donation(variable).delete()
    np.testing.assert_array_equal(second.take(), [1, 1, 1])
    second.give_back()


def test_a_write_ends_the_loan() -> None:
    variable = made()
    lease = variable.lease()
    variable.assign(np.zeros(3, np.float32))
    assert id(variable) not in lent
    np.testing.assert_array_equal(lease.take(), [1, 1, 1])
    lease.give_back()
    assert id(variable) not in lent


def test_a_variable_that_is_gone_leaves_no_trace() -> None:
    variable = made()
    key, lease = id(variable), variable.lease()
    del variable
    assert key not in lent
    lease.give_back()


@pytest.mark.parametrize("shape", [(), (6,), (4, 2)])
def test_a_copy_holds_what_is_on_all_devices(shape: tuple[int, ...]) -> None:
    strategy = jd.MirroredStrategy(["cpu:0", "cpu:1"])
    value = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    with strategy.scope():
        variables = [
            jd.Variable(value),
            jd.Variable(
                value,
                synchronization=jd.VariableSynchronization.ON_READ,
                aggregation=jd.VariableAggregation.SUM,
            ),
        ]
    for variable in variables:
        whole = np.asarray(variable.stored).copy()
        lease = variable.lease()
        donation(variable).delete()
        np.testing.assert_array_equal(lease.take(), whole)
        lease.give_back()


def test_an_empty_array_and_one_of_another_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(jnp.zeros((0, 3)))
    assert Lease.spare([lease]) == [True]
    assert lease.take().shape == (0, 3)
    elsewhere = Lease(jnp.ones(2))
    monkeypatch.setattr(jax.Device, "platform", "gpu")
    assert Lease.spare([elsewhere]) == [False]
    assert elsewhere.take() is elsewhere.take()


def test_a_step_waits_a_moment_for_an_array_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_PATIENCE_S", 60.0)
    variable = made()
    lease, array = variable.lease(), variable.stored
    lease.take()
    thread = threading.Thread(target=lease.give_back)

    class Returned(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            thread.start()
            return super().wait(timeout)

    monkeypatch.setattr(lease, "_returned", Returned())
    assert donation(variable) is array
    thread.join()


def test_a_save_that_comes_to_an_array_while_it_is_copied_gets_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    variable, found, copy_all = made(), list[jax.Array](), copies.copied
    lease, array = variable.lease(), variable.stored
    thread = threading.Thread(target=lambda: found.append(lease.take()))

    def copied(arrays: Sequence[jax.Array], spares: Sequence[copies.SpareMemory]) -> list[copies.HostCopy]:
        thread.start()
        thread.join(0.2)  # it would be through by now if nothing kept it
        return copy_all(arrays, spares)

    monkeypatch.setattr(copies, "copied", copied)
    assert donation(variable) is array
    array.delete()
    thread.join()
    np.testing.assert_array_equal(found[0], [1, 1, 1])
    lease.give_back()
