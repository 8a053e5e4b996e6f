"""Older names of the hints for collectives."""

from __future__ import annotations

from jaxtribute.experimental import CommunicationImplementation, CommunicationOptions

CollectiveCommunication = CommunicationImplementation


class CollectiveHints(CommunicationOptions):
    """The older name of `CommunicationOptions`.

    Args:
      bytes_per_pack: as there.
      timeout_seconds: as there.

    Source: `tf.distribute.experimental.CollectiveHints`.
    """

    def __init__(self, bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> None:
        super().__init__(bytes_per_pack, timeout_seconds)
