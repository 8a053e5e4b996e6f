from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute._src.core.values.mesh import AXIS, ReplicaMesh
from jaxtribute._src.core.values.placing import own


def mesh_of(count: int, first: int = 0) -> ReplicaMesh:
    return ReplicaMesh(jax.devices()[first : first + count])


def test_equality_and_hash_go_by_devices() -> None:
    assert mesh_of(2) == mesh_of(2)
    assert hash(mesh_of(2)) == hash(mesh_of(2))
    assert mesh_of(2) != mesh_of(3)
    assert mesh_of(2) != mesh_of(2, first=1)
    assert mesh_of(1) != "mesh"


def test_repr_names_the_devices() -> None:
    assert repr(mesh_of(2, first=3)) == "ReplicaMesh(['cpu:3', 'cpu:4'])"


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_devices_and_ids(count: int) -> None:
    mesh = mesh_of(count)
    assert mesh.size == count
    assert mesh.local_ids == tuple(range(count))
    assert mesh.local_devices == tuple(jax.devices()[:count])
    assert mesh.mesh.axis_names == (AXIS,)
    assert mesh.mesh.devices.tolist() == list(mesh.devices)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_replicate_puts_a_copy_on_every_device(count: int) -> None:
    mesh = mesh_of(count, first=1)
    array = mesh.replicate(np.arange(3.0, dtype=np.float32))
    assert array.sharding.device_set == set(mesh.devices)
    assert array.is_fully_replicated
    assert [part.tolist() for part in mesh.local_parts(array)] == [[0.0, 1.0, 2.0]] * count


@pytest.mark.parametrize("count", [1, 2])
def test_replicate_shares_memory_with_nothing(count: int) -> None:
    mesh = mesh_of(count)
    host = np.arange(300_000, dtype=np.float32)
    device = jnp.arange(3.0)
    placed = mesh.replicate(device)
    copies = [mesh.replicate(host), mesh.replicate(device), mesh.replicate(placed)]
    host[:] = -1
    for array in copies[1:]:
        array.delete()
    assert float(copies[0][7]) == 7.0
    assert placed.tolist() == device.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("count", [1, 2, 3])
@settings(max_examples=10)
@given(shape=st.lists(st.integers(0, 3), max_size=3).map(tuple))
def test_assemble_is_the_inverse_of_local_parts(count: int, shape: tuple[int, ...]) -> None:
    mesh = mesh_of(count)
    parts = [jax.device_put(jnp.full(shape, float(i)), device) for i, device in enumerate(mesh.devices)]
    whole = mesh.assemble(parts)
    assert whole.shape == ((count * shape[0], *shape[1:]) if shape else (count,))
    assert whole.dtype == np.float32
    pieces = mesh.local_parts(whole)
    for i, piece in enumerate(pieces):
        assert piece.devices() == {mesh.devices[i]}
        np.testing.assert_array_equal(piece, np.full(shape or (1,), float(i)))


def test_assemble_copies_nothing() -> None:
    mesh = mesh_of(2)
    parts = [jax.device_put(jnp.ones(4), device) for device in mesh.devices]
    pointers = [part.unsafe_buffer_pointer() for part in parts]
    whole = mesh.assemble(parts)
    assert [part.unsafe_buffer_pointer() for part in mesh.local_parts(whole)] == pointers


def test_parts_come_in_replica_order_whatever_the_order_of_devices() -> None:
    mesh = ReplicaMesh([jax.devices()[i] for i in (5, 1, 3)])
    whole = mesh.assemble([jax.device_put(jnp.float32(i), device) for i, device in enumerate(mesh.devices)])
    assert whole.tolist() == [0.0, 1.0, 2.0]
    assert [part.devices().pop().id for part in mesh.local_parts(whole)] == [5, 1, 3]


def test_throttle_waits_only_where_devices_share_threads() -> None:
    class Counting:
        waits = 0

        def block_until_ready(self) -> None:
            self.waits += 1

    several, single = Counting(), Counting()
    many, one = mesh_of(2), mesh_of(1)
    for _ in range(48):
        many.throttle(lambda: several)
        one.throttle(lambda: single)
    assert several.waits == 3
    assert single.waits == 0
    assert (many.throttles, one.throttles) == (True, False)


def test_own_copies_host_and_device_arrays_and_numbers() -> None:
    host, device = np.zeros(2), jnp.zeros(2)
    assert own(host) is not host
    assert own(device).unsafe_buffer_pointer() != device.unsafe_buffer_pointer()
    assert own(2.5).tolist() == 2.5
    assert own(device).dtype == device.dtype


OWNED = st.sampled_from([np.float32, np.float64, np.int8, np.int32, np.complex64, np.bool_, jnp.bfloat16])


@settings(max_examples=40)
@given(st.lists(st.integers(0, 5), max_size=3), OWNED, st.booleans(), st.booleans())
def test_what_is_owned_is_equal_and_of_its_own_memory(
    shape: list[int], dtype: Any, on_device: bool, replicated: bool
) -> None:
    mesh = ReplicaMesh(jax.devices()[: 2 if replicated else 1])
    host = np.array(np.arange(np.prod(shape)).reshape(shape) % 2, dtype)
    given_ = jnp.asarray(host) if on_device else host.copy()
    found = own(given_, mesh.replicated)
    assert found.sharding == mesh.replicated
    assert found.dtype == jnp.asarray(host).dtype
    if not on_device:
        given_[...] = 7  # too late to be seen
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), jnp.asarray(host))


@pytest.mark.parametrize("on_device", [False, True])
def test_what_is_owned_can_be_given_up(on_device: bool) -> None:
    mesh = ReplicaMesh(jax.devices()[:2])
    host = np.ones((3, 5), np.float32)
    kept = jnp.asarray(host)
    found = own(kept if on_device else host, mesh.replicated)
    before = [shard.data.unsafe_buffer_pointer() for shard in found.addressable_shards]
    after = jax.jit(lambda x: x + 1, donate_argnums=0)(found)
    assert [shard.data.unsafe_buffer_pointer() for shard in after.addressable_shards] == before
    assert found.is_deleted()
    np.testing.assert_array_equal(host, 1)
    np.testing.assert_array_equal(kept, 1)


def test_small_arrays_are_owned_without_compiling(caplog: pytest.LogCaptureFixture) -> None:
    mesh = ReplicaMesh(jax.devices()[:2])
    with jax.log_compiles():
        for size in range(61, 64):
            for where in (mesh.replicated, mesh.devices[1], None):
                own(np.zeros((size, 7), np.float32), where)
        assert "Compiling" not in caplog.text
        jnp.zeros((61, 67)).copy()
        assert "Compiling" in caplog.text  # as it looks otherwise


def test_plain_parts_are_joined_as_jax_joins_them(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = jax.devices()[2::-1]
    mesh = ReplicaMesh(devices)
    calls: list[Any] = []
    joins = jax.make_array_from_single_device_arrays
    monkeypatch.setattr(
        jax, "make_array_from_single_device_arrays", lambda *given: calls.append(given) or joins(*given)
    )
    for turn in range(3):
        rows = [np.array([turn, 10 * place], np.float32) for place in range(3)]
        whole = mesh.assemble_plain([jax.device_put(row, device) for row, device in zip(rows, devices, strict=True)])
        assert whole is not None
        expected = jax.device_put(np.concatenate(rows), mesh.split)
        assert (whole.aval, whole.sharding, whole.committed) == (expected.aval, expected.sharding, True)
        np.testing.assert_array_equal(whole, expected)
        np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(whole), expected + 1)
        shards = {shard.device: np.asarray(shard.data).tolist() for shard in whole.addressable_shards}
        assert shards == {device: row.tolist() for device, row in zip(devices, rows, strict=True)}
    assert len(calls) == 1


def test_other_parts_are_not_joined_unseen() -> None:
    first, second = jax.devices()[:2]
    mesh = ReplicaMesh([first, second])
    near, far = jax.device_put(np.ones(2, np.float32), first), jax.device_put(np.ones(2, np.float32), second)
    assert mesh.assemble_plain([near, far]) is not None
    keys = [jax.device_put(jax.random.split(jax.random.key(0)), device) for device in (first, second)]
    others: list[list[Any]] = [
        [far, near],
        [near, far[:1]],
        [near, far.astype(int)],
        [near[0], far[0]],
        [near, 1.0],
        keys,
    ]
    assert [mesh.assemble_plain(parts) for parts in others] == [None] * 6
