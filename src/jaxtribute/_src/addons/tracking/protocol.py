"""`Tracker`: what every place for the figures of a training can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from jaxtribute.typing import HostArray, Json


_BINS = 30


@runtime_checkable
class Tracker(Protocol):
    """A place for the figures of a training; write one for a service that is not among those built in.

    All methods are called in one thread of the first worker, never in the one that trains. A method that raises, or
    does not return, costs the figures and nothing else.

    Examples:
      >>> class Printing(jd.summary.Tracker):
      ...     def scalars(self, step, values, at):
      ...         print(step, values)
    """

    def scalars(self, values: Mapping[str, float], step: int, time_s: float) -> None:
        """Takes the numbers of a step.

        Args:
          values: numbers by name.
          step: the step that they belong to.
          time_s: seconds since 1970.
        """
        ...

    def histogram(self, name: str, values: HostArray, step: int, time_s: float) -> None:
        """Takes the values of an array, to be shown as a distribution.

        Args:
          name: of the distribution.
          values: the numbers, of shape `(count,)`.
          step: the step that they belong to.
          time_s: seconds since 1970.
        """
        ...

    def text(self, name: str, text: str, step: int, time_s: float) -> None:
        """Takes a text.

        Args:
          name: of the text.
          text: what it says.
          step: the step that it belongs to.
          time_s: seconds since 1970.
        """
        ...

    def configure(self, settings: Mapping[str, Json]) -> None:
        """Takes the settings of the training.

        Args:
          settings: values that JSON can hold, by name.
        """
        ...

    def flush(self) -> None:
        """Brings what was taken to where others see it."""
        ...

    def close(self) -> None:
        """Ends the tracking."""
        ...


def counted(values: HostArray) -> dict[str, Json]:
    """Counts and edges of 30 equal bins of the finite ones among the values, and the number of all others."""
    import numpy as np  # the launcher knows trackers by their names alone

    # NumPy finds no edges where one of the values is infinite or none.
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, _BINS)
    found: dict[str, Json] = {"counts": counts.tolist(), "edges": edges.tolist()}
    return found if len(finite) == len(values) else found | {"not_finite": len(values) - len(finite)}
