"""The ways in which a file on a disk is damaged; tests of checkpoints, of saves of servers and the soak use them."""

from __future__ import annotations

import random
from pathlib import Path

DAMAGES = ("empty", "cut", "one bit", "random", "swapped", "missing", "old")


def damage(kind: str, file: Path, other: Path, old: Path, rng: random.Random) -> None:
    """Damages a file.

    Args:
      kind: one of `DAMAGES`.
      file: the file; of the kinds that change its content, it is not empty.
      other: another file of the same checkpoint, with which `"swapped"` exchanges it.
      old: the same file of an earlier checkpoint, which `"old"` puts in its place.
      rng: chooses the place of the damage.
    """
    content = file.read_bytes()
    if kind == "missing":
        file.unlink()
        return
    if kind == "swapped":
        file.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return
    file.write_bytes(old.read_bytes() if kind == "old" else _changed(kind, content, rng))


def _changed(kind: str, content: bytes, rng: random.Random) -> bytes:
    if kind == "empty":
        return b""
    if kind == "cut":
        return content[: rng.randrange(1, len(content))]
    if kind == "random":
        return rng.randbytes(len(content))
    assert kind == "one bit", kind
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
