"""Large pages for tables on CPUs.

Steps read and write rows all over a table. With pages of 4 KiB the processor has to look up for nearly each of them
where its page lies, which takes longer in a larger table; with pages of 2 MiB it knows most.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import jax

from jaxtribute.extending import Tracer

_LEAST_BYTES = 8 << 20
"""A processor knows the places of about so much memory in small pages."""
_PAGE = 2 << 20
_HUGEPAGE, _COLLAPSE = 14, 25
"""Advice of madvise(2): to use large pages from now on, and for what is there already (since Linux 6.1)."""


def in_large_pages(array: Any) -> Any:
    """Asks Linux to keep an array in large pages if it is large and on CPUs; returns the array.

    Steps give it up and write their result in its place, so that the advice holds as long as the variable. If the
    system cannot follow it, or was told not to, nothing else changes.
    """
    if sys.platform != "linux" or not isinstance(array, jax.Array) or isinstance(array, Tracer):
        return array
    # Before its parts are asked for: those of devices that are only described do not exist.
    if any(device.platform != "cpu" for device in array.sharding.device_set):
        return array
    for shard in array.addressable_shards:
        part: Any = shard.data
        if part.nbytes < _LEAST_BYTES:
            continue
        start = jax.block_until_ready(part).unsafe_buffer_pointer()
        first, end = -(-start // _PAGE) * _PAGE, (start + part.nbytes) // _PAGE * _PAGE
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for advice in (_HUGEPAGE, _COLLAPSE):
            madvise(first, end - first, advice)
    return array
