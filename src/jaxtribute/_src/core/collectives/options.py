"""Hints for collectives: `CommunicationOptions` and its older names."""

from __future__ import annotations

from enum import Enum

from jaxtribute._src.core import settings


class CommunicationImplementation(Enum):
    """Library that carries collectives between machines.

    XLA chooses by the devices: NCCL between GPUs, Gloo (over TCP) between CPUs, the interconnect between TPUs. Between
    CPUs `RING` asks for Gloo's ring instead of what is faster, exchanges in pairs and factors of products; otherwise
    the members choose nothing.

    Source: `tf.distribute.experimental.CommunicationImplementation`.
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


CollectiveCommunication = CommunicationImplementation


class CommunicationOptions:
    """Hints for `ReplicaContext.all_reduce` and `StrategyExtended.batch_reduce_to`.

    Args:
      bytes_per_pack: how many bytes of small arrays may travel in one collective. 0 leaves it to the library.
      timeout_seconds: how long a collective between machines may take before it fails; None for no limit. Within
        one machine nothing is waited for and it has no effect.
      implementation: see `CommunicationImplementation`.

    Raises:
      ArgumentError: a negative size or time, or an unknown implementation.

    Source: `tf.distribute.experimental.CommunicationOptions`.
    """

    def __init__(
        self,
        bytes_per_pack: int = 0,
        timeout_seconds: float | None = None,
        implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO,
    ) -> None:
        self.bytes_per_pack: int = settings.whole("bytes_per_pack", bytes_per_pack)
        self.timeout_seconds: float | None = settings.amount("timeout_seconds", timeout_seconds, optional=True)
        self.implementation: CommunicationImplementation = settings.member(
            "implementation", implementation, CommunicationImplementation
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(bytes_per_pack={self.bytes_per_pack}, timeout_seconds={self.timeout_seconds}, "
            f"implementation={self.implementation})"
        )


class CollectiveHints(CommunicationOptions):
    """The older name of `CommunicationOptions`.

    Args:
      bytes_per_pack: as there.
      timeout_seconds: as there.

    Source: `tf.distribute.experimental.CollectiveHints`.
    """

    def __init__(self, bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> None:
        super().__init__(bytes_per_pack, timeout_seconds)
