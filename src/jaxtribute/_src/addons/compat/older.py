"""Strategies with the arguments that they had in `tf.distribute.experimental`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jaxtribute as jd
from jaxtribute.experimental import CommunicationImplementation, CommunicationOptions, DeviceAssignment
from jaxtribute.typing import Device

if TYPE_CHECKING:
    from jaxtribute.cluster_resolver import ClusterResolver


class MultiWorkerMirroredStrategy(jd.MultiWorkerMirroredStrategy):
    """`jd.MultiWorkerMirroredStrategy` with its older arguments.

    Args:
      communication: which library carries collectives; accepted for compatibility.
      cluster_resolver: as there.

    Source: `tf.distribute.experimental.MultiWorkerMirroredStrategy`.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        super().__init__(cluster_resolver, CommunicationOptions(implementation=communication))


class TPUStrategy(jd.TPUStrategy):
    """`jd.TPUStrategy` with its older arguments.

    Args:
      tpu_cluster_resolver: as there.
      device_assignment: as `experimental_device_assignment` there.

    Source: `tf.distribute.experimental.TPUStrategy`.
    """

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        device_assignment: DeviceAssignment | Sequence[str | Device] | None = None,
    ) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)
