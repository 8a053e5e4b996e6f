"""Older names of the hints for collectives."""

import jaxtribute as jd
from jaxtribute.experimental import CommunicationImplementation as Implementation


def test_older_names() -> None:
    hints = jd.experimental.CollectiveHints(bytes_per_pack=7, timeout_seconds=1.0)
    assert isinstance(hints, jd.experimental.CommunicationOptions)
    assert (hints.bytes_per_pack, hints.timeout_seconds) == (7, 1.0)
    assert jd.experimental.CollectiveCommunication is Implementation
    assert [member.value for member in Implementation] == ["AUTO", "RING", "NCCL"]
