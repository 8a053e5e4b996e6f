"""Which devices make up which replica, by their coordinates."""

from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtribute.errors import ArgumentError, ArgumentTypeError, DeviceError, ShapeError
from jaxtribute.experimental import DeviceAssignment, Topology

WRONG: Any = "v5e"


@dataclass(frozen=True)
class Core:
    """A pretended device."""

    coords: tuple[int, int, int]
    core_on_chip: int
    platform: str = "tpu"

    @property
    def place(self) -> tuple[int, ...]:
        return *self.coords, self.core_on_chip


def chips(x: int, y: int, z: int, cores: int) -> Topology:
    """A topology of pretended devices."""
    devices: Any = [
        Core((i, j, k), core)
        for i in range(x) for j in range(y) for k in range(z) for core in range(cores)
    ]  # fmt: skip
    return Topology(devices)


def test_devices_that_tell_no_coordinates_are_chips_of_two_cores() -> None:
    topology = Topology(jax.devices()[:6])
    assert topology.mesh_shape.tolist() == [3, 1, 1, 2]
    assert topology.mesh_rank == 4
    assert topology.devices[2, 0, 0, 1] == jax.devices()[5]
    assert repr(topology) == "<jd.experimental.Topology of 6 devices, 3x1x1x2>"
    assert Topology(jax.devices()[:3]).mesh_shape.tolist() == [3, 1, 1, 1]


SIZES = st.tuples(*[st.sampled_from([1, 2, 4])] * 3, st.sampled_from([1, 2]))


@settings(max_examples=60)
@given(system=SIZES, data=st.data())
def test_blocks_are_apart_and_of_their_shape(system: tuple[int, int, int, int], data: Any) -> None:
    shape = [data.draw(st.sampled_from([d for d in (1, 2, 4) if size % d == 0])) for size in system]
    stride = [data.draw(st.sampled_from([d for d in (1, 2) if size % (d * part) == 0]))
              for size, part in zip(system, shape, strict=True)]  # fmt: skip
    most = int(np.prod(system)) // int(np.prod(shape))
    made = DeviceAssignment.build(chips(*system), shape, stride, num_replicas=most)
    assert (made.num_replicas, made.num_cores_per_replica) == (most, np.prod(shape))
    places = made.core_assignment
    assert len({tuple(place) for place in places.reshape(-1, 4)}) == np.prod(system)
    for block in places:
        for axis in range(4):
            along = sorted(set(block[:, axis].tolist()))
            assert along == [along[0] + stride[axis] * i for i in range(shape[axis])]
    assert [cast("Any", device).place for device in made.devices] == [
        tuple(place) for place in places.reshape(-1, 4).tolist()
    ]
    with pytest.raises(DeviceError, match=rf"room for {most} replicas.*HINT"):
        DeviceAssignment.build(chips(*system), shape, stride, num_replicas=most + 1)


def test_the_axes_of_a_replica() -> None:
    def shape(*size: int) -> dict[str, int]:
        return DeviceAssignment.build(chips(4, 4, 1, 2), size).replica_shape

    assert shape(1, 1, 1, 1) == {}
    assert shape(1, 1, 1, 2) == {"model": 2}
    assert shape(2, 4, 1, 2) == {"x": 2, "y": 4, "core": 2}


def test_places_by_hand() -> None:
    topology = Topology(jax.devices()[:4])
    made = DeviceAssignment(topology, [[[1, 0, 0, 1], [0, 0, 0, 0]]])
    assert made.devices == (jax.devices()[3], jax.devices()[0])
    assert made.coordinates(0, 0) == (1, 0, 0, 1)
    assert made.tpu_device(0, 1).endswith("CPU:0")
    assert made.replica_shape == {"model": 2}
    assert made.topology is topology
    assert repr(made) == "<jd.experimental.DeviceAssignment of 1 replicas of 2>"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda t: DeviceAssignment(t, [[[9, 0, 0, 0]]]), DeviceError),
        (lambda t: DeviceAssignment(t, [[[0, 0, 0, 0], [0, 0, 0, 0]]]), DeviceError),
        (lambda t: DeviceAssignment(t, [[0, 0, 0, 0]]), ShapeError),
        (lambda t: DeviceAssignment(t, [[[0.5, 0, 0, 0]]]), ShapeError),
        (lambda _: DeviceAssignment(WRONG, [[[0, 0, 0, 0]]]), ArgumentTypeError),
        (lambda _: DeviceAssignment.build(WRONG), ArgumentTypeError),
        (lambda t: DeviceAssignment.build(t, [2, 1]), ShapeError),
        (lambda t: DeviceAssignment.build(t, [0, 1, 1, 1]), ArgumentError),
        (lambda t: DeviceAssignment.build(t, num_replicas=0), ArgumentError),
        (lambda _: Topology([]), DeviceError),
        (lambda _: Topology([jax.devices()[0]] * 2), DeviceError),
        (lambda _: DeviceAssignment.build(), DeviceError),
    ],
)
def test_what_is_none(make: Any, error: Any) -> None:
    with pytest.raises(error, match="HINT"):
        make(Topology(jax.devices()[:2]))
