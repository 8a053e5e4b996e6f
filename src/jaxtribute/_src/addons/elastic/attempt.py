"""`Attempt`: one try of a step, in one view."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtribute._src.addons.elastic.membership import View
from jaxtribute.errors import JaxtributeError


@dataclass
class Attempt:
    """One try of a step.

    Attributes:
      step: the step's number.
      view: the view that it is tried in.
      place: the number of exchanges so far.
      held: True once this island has all of it.
      failed: True if it can never be committed in this view.
      error: what is to be raised in its place.
    """

    step: int
    view: View
    place: int = 0
    held: bool = False
    failed: bool = False
    error: JaxtributeError | None = None
