"""Replicas of several devices: what strategies are told of them, and how devices form groups."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jaxtribute._src.core import points, settings
from jaxtribute._src.core.types import Device, Foreign
from jaxtribute._src.core.values.layouts import LayoutMap, check_names
from jaxtribute._src.core.values.mesh import AXIS, Layout, Peers, ReplicaMesh
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentError, ArgumentTypeError, DeviceError

if TYPE_CHECKING:
    from jaxtribute._src.core.execution.capture import Capture

MODEL_AXIS = "model"
"""Name of the one axis within a replica that is told by its length alone."""


class ProgramLayout(LayoutMap, ABC):
    """A layout map that fills itself, from the shapes of variables and from the programs that use them."""

    @abstractmethod
    def layout_of(self, variable: Variable, mesh: ReplicaMesh, most_bytes: int | None = None) -> Layout:
        """Returns the layout of a new variable; from `most_bytes` on the strategy does not want it whole."""

    @abstractmethod
    def lay_out(self, mesh: ReplicaMesh, capture: Capture, leaves: Sequence[Any]) -> None:
        """Lays out variables by a traced program that uses them, and the arrays of its arguments."""


class Groups(NamedTuple):
    """The devices of each replica, and the layouts of variables on them.

    Attributes:
      shape: the axes within a replica, and their lengths; empty for one device a replica.
      layouts: how variables that say nothing themselves lie there.
    """

    shape: Mapping[str, int]
    layouts: LayoutMap | None

    @classmethod
    def of(cls, devices_per_replica: Foreign, replica_shape: Foreign, layout: Foreign) -> Groups:
        """Reads what a strategy is told of its replicas' devices.

        Args:
          devices_per_replica: their number, along one axis named "model".
          replica_shape: names and lengths of the axes instead.
          layout: a `LayoutMap`, Keras's or a dictionary like one; "auto" for an automatic one; None for none.

        Raises:
          ArgumentError: both are given and differ, a length below 1, a name that is taken, or a layout that names an
            axis which the replicas do not have.
          ArgumentTypeError: a value of another type.
        """
        count = settings.whole("devices_per_replica", devices_per_replica, 1, optional=True)
        if replica_shape is None:
            shape = {MODEL_AXIS: count} if count is not None and count > 1 else {}
        else:
            shape = _shape(replica_shape)
            whole = math.prod(shape.values())
            if count not in (None, whole):
                raise ArgumentError(
                    f"devices_per_replica is {count} and replica_shape {replica_shape!r} has {whole}. HINT: pass one."
                )
        layouts = _layouts(layout)
        # Where a replica has one device its axes do not exist, and no layout splits anything: one table of layouts
        # serves the laptop and the slice.
        for key, axes in (layouts or {}).items() if shape else ():
            check_names(axes, shape, repr(key))
        return cls(shape, layouts)

    def mesh(self, devices: Sequence[Device], peers: Peers | None = None) -> ReplicaMesh:
        """Makes the mesh of devices in the order of replicas.

        Raises:
          DeviceError: they cannot be divided into groups.
        """
        mesh = ReplicaMesh(devices, peers, self.shape)
        # The mesh itself rounds down: a rest of devices would stay idle, and nobody would be told.
        if mesh.size * mesh.group_size != len(devices) or not mesh.size:
            raise DeviceError(
                f"{len(devices)} devices cannot be divided into replicas of {mesh.group_size} ({dict(self.shape)}). "
                "HINT: choose a number of devices per replica that divides theirs."
            )
        return mesh


ALONE = Groups({}, None)
"""Replicas of one device."""


def _shape(replica_shape: Foreign) -> dict[str, int]:
    if not isinstance(replica_shape, Mapping):
        raise ArgumentTypeError(
            f"replica_shape is {replica_shape!r} of type {type(replica_shape).__name__}. "
            'HINT: pass names and lengths of axes, e.g. {"model": 2}.'
        )
    shape: dict[str, int] = {}
    for name, length in cast("Mapping[Any, Any]", replica_shape).items():
        if not isinstance(name, str) or not name or name == AXIS:
            raise ArgumentError(
                f"replica_shape names an axis {name!r}. HINT: a name other than {AXIS!r}, which runs over the replicas."
            )
        shape[name] = settings.whole(f"replica_shape[{name!r}]", length, 1)
    return shape


def _layouts(layout: Foreign) -> LayoutMap | None:
    if layout is None or isinstance(layout, LayoutMap):
        return layout
    if layout == "auto":
        return points.LAYOUTS.last()()
    if not isinstance(layout, Mapping):
        raise ArgumentTypeError(
            f"layout is {layout!r} of type {type(layout).__name__}. "
            'HINT: pass a jd.LayoutMap, e.g. jd.LayoutMap({"dense/kernel": (None, "model")}), or "auto".'
        )
    return LayoutMap(cast("Mapping[str, Any]", layout))
