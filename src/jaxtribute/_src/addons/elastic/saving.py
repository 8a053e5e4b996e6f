"""`Saves`: checkpoints of islands. One island writes each for all, and all go on from the same.

The island that first tells the others about checkpoints writes them, as long as it lives; then the first of those that
are left. An island that joins is told what the others were told, writes nothing while it catches up, and restores the
checkpoint that the job has begun with, as they have.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxtribute._src.addons.elastic.membership import Island, View
from jaxtribute._src.addons.elastic.runtime import IslandMesh
from jaxtribute._src.addons.elastic.steps import Step
from jaxtribute.extending import points
from jaxtribute.typing import HostArray


class Saves:
    """This island's part in checkpoints.

    Args:
      mesh: this island, and the others.
    """

    def __init__(self, mesh: IslandMesh) -> None:
        self._mesh = mesh
        self._writer: Island | None = None

    def first(self, what: str, own: Callable[[], str]) -> str:
        """The text of the first island, on all: a step of its own."""
        mesh, islands = self._mesh, self._mesh.islands

        def body(view: View) -> HostArray:
            told = json.dumps([islands.me, own()]).encode() if mesh.island_in(view) == 0 else b""
            (size,) = islands.sum([np.asarray([len(told)])], f"the length of {what}")
            content = np.zeros(size.item(), np.uint8)
            content[: len(told)] = np.frombuffer(told, np.uint8)[: len(content)]
            return islands.sum([content], what)[0]

        island, text = json.loads(bytes(mesh.step(Step(what), body)))
        self._writer = self._writer or Island(*island)
        return text

    def writes(self, path: Path) -> bool:
        """True if this island writes a checkpoint."""
        islands, before = self._mesh.islands, self._writer

        def chosen() -> str:
            return json.dumps(before if before in self._mesh.view.members else islands.me)

        writer = self._writer = Island(*json.loads(self.first(f"the save of {path}", chosen)))
        if islands.newcomer is not None or writer != islands.me:
            return False
        if before not in (None, writer):
            # The one before is dead, of which the file system knows nothing if that was on another machine.
            (path.parent / f".{path.name.rpartition('-')[0] or path.name}.owner").unlink(missing_ok=True)
        return True


_last: list[weakref.ref[Saves]] = []


def begin(saves: Saves) -> None:
    """Lets an island's part in checkpoints be found, until `end`."""
    _last[:] = [weakref.ref(saves)]


def end(saves: Saves) -> None:
    """The island has left the others."""
    if _last and _last[0]() is saves:
        _last.clear()


def _present() -> Saves | None:
    return _last[0]() if _last else None


points.TOGETHER.register(_present)
