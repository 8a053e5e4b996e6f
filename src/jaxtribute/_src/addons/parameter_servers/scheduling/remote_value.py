"""`RemoteValue`: what a scheduled function will return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxtribute._src.addons.messaging.encoding import as_jax
from jaxtribute._src.addons.parameter_servers.scheduling.pickling import ByReference
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.typing import Nest


class RemoteValue(ByReference):
    """The result of `ClusterCoordinator.schedule`, which comes when a worker has run the function.

    Source: `tf.distribute.experimental.coordinator.RemoteValue`.
    """

    def __init__(self, wait: Callable[[Callable[[], bool]], None]) -> None:
        self._wait = wait
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def fetch(self) -> Any:
        """Waits for the function and returns its result, with NumPy arrays.

        Raises:
          CancelledError: the function did not run, as another one failed before.
          ClusterError: there has been no worker for too long.
          Exception: what the function raised.
        """
        if not self._done:
            self._wait(lambda: self._done)
        if self._error is not None:
            raise self._error
        return self._value

    def get(self) -> Any:
        """Waits for the function and returns its result, with JAX arrays.

        Raises:
          ArgumentError: an array of integers that JAX's type for them cannot hold.
          Exception: what `fetch` raises.
        """
        return jax.tree.map(lambda leaf: as_jax(leaf) if isinstance(leaf, np.ndarray) else leaf, self.fetch())

    def settle(self, value: Nest, error: BaseException | None = None) -> None:
        """Takes the result, or the error in its place; the caller tells those who wait."""
        # The first outcome stays: a call that was cancelled may still end on its worker.
        if not self._done:
            # `_done` is set last, since other threads look at it without a lock.
            self._value, self._error, self._done = value, error, True

    @property
    def is_done(self) -> bool:
        """True if the function has ended."""
        return self._done

    def reference(self) -> tuple[Any, tuple[Any, ...]]:
        """None: a result is on the coordinator.

        Raises:
          ArgumentTypeError: always.
        """
        raise ArgumentTypeError(
            "a RemoteValue is used by a scheduled function. HINT: pass its value: coordinator.fetch(remote_value)."
        )

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "ready" if self._done else "pending"
        return f"<RemoteValue, {state}>"
