"""`FoundLayouts`: the layouts of a program's variables by their names, as far as names tell the variables apart."""

from __future__ import annotations

import os
from typing import Any

from jaxtribute import LayoutMap
from jaxtribute.errors import ArgumentError


class FoundLayouts(LayoutMap):
    """A layout map with a key for each variable of a program.

    Attributes:
      shared: names of several variables that lie differently, as those do that were given none. They have no key.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shared: set[str] = set()

    def add(self, key: str, layout: Any, note: LayoutMap.Note | None) -> None:
        """Notes the layout of one more variable.

        Args:
          key: the pattern that fits its name alone.
          layout: its layout.
          note: a word about it.
        """
        if key in self.shared:
            return
        if self.get(key, layout) != layout:
            del self[key]
            self.shared.add(key)
            return
        self[key] = layout
        if note is not None:
            self.notes.setdefault(key, note)

    def join(self, others: FoundLayouts) -> None:
        """Notes the layouts of another program's variables."""
        for key in others.shared:
            self.pop(key, None)
        self.shared |= others.shared
        for key, layout in others.items():
            self.add(key, layout, others.notes.get(key))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the entries to a file of JSON; see `LayoutMap.save`.

        Raises:
          ArgumentError: several variables of one name lie differently: a file of names cannot say how.
        """
        if self.shared:
            names = sorted(key.removeprefix("^").removesuffix("$") for key in self.shared)
            raise ArgumentError(
                f"several variables are called {names[0]!r} and lie differently, which a file of names cannot say"
                f"{f' ({len(names)} such names)' if len(names) > 1 else ''}. HINT: give each variable a name of its "
                'own, e.g. jd.Variable(..., name="up").'
            )
        super().save(path)

    def __str__(self) -> str:
        """A table of the entries, and the names of variables that are missing there."""
        lines = [super().__str__()] if self or not self.shared else []
        return "\n".join([*lines, *(f"{key}: several variables, which lie differently" for key in sorted(self.shared))])
