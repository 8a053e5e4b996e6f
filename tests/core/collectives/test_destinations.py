"""What may be a destination, and what arrives there."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxtribute as jd
from jaxtribute._src.core.collectives.destinations import parse_destinations, put
from jaxtribute.errors import ArgumentTypeError, DeviceError
from replicas import components, mirrored, one_device, per_replica, variable

MESH = mirrored(2).extended.mesh


def test_variables_stand_for_their_devices() -> None:
    assert parse_destinations(variable(mirrored(2), 1.0), MESH) == MESH
    assert parse_destinations(variable(one_device(3), 1.0), MESH) == one_device(3).extended.mesh
    central = variable(jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:4"), 1.0)
    assert parse_destinations(central, MESH) == jax.devices()[4]
    assert parse_destinations(jd.Variable(1.0), MESH) == jax.devices()[0]


def test_distributed_values_stand_for_their_devices() -> None:
    assert parse_destinations(per_replica(mirrored(2), [1, 2]), MESH) == MESH
    assert parse_destinations(mirrored(3).place(1.0), MESH) == mirrored(3).extended.mesh


@pytest.mark.parametrize("name", ["CPU:5", "/device:CPU:5", "/job:localhost/replica:0/task:0/device:CPU:5"])
def test_names_stand_for_devices(name: str) -> None:
    assert parse_destinations(name, MESH) == jax.devices()[5]
    assert parse_destinations(jax.devices()[5], MESH) == jax.devices()[5]


def test_arrays_stand_for_their_devices() -> None:
    assert parse_destinations(jax.device_put(1.0, jax.devices()[2]), MESH) == jax.devices()[2]
    assert parse_destinations(MESH.replicate(1.0), MESH) == MESH


@pytest.mark.parametrize("wrong", [["CPU:0"], ("CPU:0", "CPU:1"), 3, None])
def test_anything_else_is_an_error(wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="HINT"):
        parse_destinations(wrong, MESH)


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(DeviceError, match="CPU:99"):
        parse_destinations("CPU:99", MESH)


def test_put_on_several_devices_mirrors() -> None:
    value = put(jnp.float32(3.0), MESH)
    assert isinstance(value, jd.Mirrored)
    assert components(value) == [3.0, 3.0]
    assert components(put(value, mirrored(3).extended.mesh)) == [3.0] * 3


def test_put_on_one_device_gives_an_array_there() -> None:
    assert put(MESH.replicate(jnp.float32(2.0)), jax.devices()[6]).devices() == {jax.devices()[6]}
    assert put(jnp.float32(2.0), one_device(3).extended.mesh).devices() == {jax.devices()[3]}


def test_put_leaves_traced_values_to_the_program() -> None:
    assert jax.jit(lambda x: put(x, jax.devices()[3]) + 1)(jnp.float32(1.0)) == 2
