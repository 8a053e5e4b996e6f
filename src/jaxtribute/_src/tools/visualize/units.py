"""Sizes in words."""

from __future__ import annotations


def bytes_text(count: float) -> str:
    """Bytes in the unit that keeps the number short: `640 B`, `66.0 KB`, `1.2 GB` (powers of 1,000)."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def shape_text(shape: tuple[int, ...]) -> str:
    """`64 x 256`, or `scalar`."""
    return " x ".join(map(str, shape)) or "scalar"
