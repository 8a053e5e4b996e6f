"""Sums of what all islands send: each adds up all of it, or, where that is much, a part for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxtribute._src.addons.elastic.membership import Island
from jaxtribute._src.addons.elastic.packing import Parcel
from jaxtribute._src.addons.elastic.traffic import Head
from jaxtribute.typing import HostArray

_MANY, _LARGE = 3, 1 << 18
"""Islands and bytes from which on each island adds up a part for all: a half of the bytes for 4 islands."""
Finish = Callable[[], list[Any] | None]
"""Waits for sums; None if the step has failed."""
Post = Callable[[dict[Island, Parcel]], Head | None]
Collect = Callable[[Head | None], dict[Island, memoryview] | None]


def begun(me: Island, members: Sequence[Island], parcel: Parcel, post: Post, collect: Collect) -> Finish:
    """Sends other islands what is theirs to add up; returns what comes after that.

    Args:
      me: this island.
      members: all islands.
      parcel: this one's arrays.
      post: begins to send parcels.
      collect: waits for those of the others.
    """
    is_divided = len(members) >= _MANY and parcel.size >= _LARGE
    each = parcel.divided(len(members)) if is_divided else [parcel] * len(members)
    parts = dict(zip(members, each, strict=True))
    head = post(parts)

    def finish() -> list[HostArray] | None:
        got = collect(head)
        if got is None:
            return None
        own = parts[me].total(members, me, got)
        if not is_divided:
            return own
        got = collect(post(dict.fromkeys(members, Parcel(own, parcel.what))))
        return None if got is None else parcel.put_together(parts, me, own, got)

    return finish
