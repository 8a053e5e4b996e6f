"""Reads and writes variables on servers; tells which pushes belong to which closure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxtribute._src.addons.messaging.wire import Header
from jaxtribute._src.addons.parameter_servers.server.client import Client, Exchange, pulled
from jaxtribute._src.addons.parameter_servers.server.layout import Layout
from jaxtribute._src.addons.parameter_servers.variables.operations import add_operation
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Kinds
from jaxtribute.typing import ArrayLike

if TYPE_CHECKING:
    from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable


class Access:
    """The way to the servers.

    Args:
      client: the connections.
      token: says which push of which closure the next one is.
      retry: calls a function, again after a server that failed is back.
      ended: told when a push that `token` named will not be tried again.
    """

    client: Client

    def __init__(
        self,
        client: Client,
        token: Callable[[], Header],
        retry: Callable[[Callable[[], Any]], Any] = lambda function: function(),
        ended: Callable[[Header], None] = lambda _: None,
    ) -> None:
        self.client, self._token, self._retry, self._ended = client, token, retry, ended
        self.staleness = 0
        """Number of pushes of its own that a worker's pull may be behind."""
        self.next_is: Callable[[], bool] = lambda: False
        """True if what this process does next is the same as now."""
        self._ready: tuple[Any, int] | None = None

    def run(self, exchange: Exchange) -> dict[int, list[Any]]:
        """Sends a batch of requests."""
        self._ready = None
        if exchange.empty:
            return {}
        # Reads have no name: whoever runs a closure again may read more or less often, as values may be there already.
        # A name is drawn once, outside the retry: asked again under it, a push that had been applied is not applied
        # twice.
        header = self._token() if exchange.changes else {}
        try:
            if Kinds.WAIT.observers:
                with Kinds.WAIT.during(self, "for the servers"):
                    return self._retry(lambda: exchange.run(header))
            return self._retry(lambda: exchange.run(header))
        finally:
            if header:
                self._ended(header)

    def follows(self, age: int) -> bool:
        """True if a program's next pull should go with its push: where it runs again at once, and is too old."""
        return self.staleness <= age and self.next_is()

    def make_ready(self, program: object, age: int) -> None:
        """Notes that a program's values are `age` pushes old; anything else that is sent makes them unusable."""
        self._ready = program, age

    def take_ready(self, program: object) -> int | None:
        """Age of a program's values in pushes if they may be used once more; else None."""
        # For one use: whoever sends anything in between has changed what the values stand for.
        ready, self._ready = self._ready, None
        if ready is None or ready[0] is not program or ready[1] > self.staleness:
            return None
        return ready[1]

    def read(self, layouts: Sequence[Layout]) -> list[Any]:
        """The values of variables, fetched where they have changed."""
        with self.client.lock:
            exchange = Exchange(self.client)
            for layout in layouts:
                exchange.pull(layout)
            self.run(exchange)
            return [pulled(self.client, layout) for layout in layouts]

    def change(self, kind: str, variable: ServerVariable, values: Sequence[Any]) -> None:
        """Applies an operation now."""
        with self.client.lock:
            exchange = Exchange(self.client)
            add_operation(exchange, kind, variable, [np.asarray(value) for value in values])
            self.run(exchange)

    def rows(self, layout: Layout, ids: np.ndarray[Any, Any], *, padded: bool = False) -> np.ndarray[Any, Any]:
        """Some rows, of shape `(*ids.shape, *row shape)`, as `Gather` says; each is fetched once."""
        with self.client.lock:
            exchange = Exchange(self.client)
            gather = Gather(exchange, layout, ids, padded=padded)
            return gather.result(self.run(exchange))


class Gather:
    """Some rows of a variable as part of a request.

    Args:
      exchange: the request.
      layout: where the variable is.
      ids: which rows, in any order and number.
      padded: True if the id -1 is no row, and gives zeros.

    Raises:
      ArgumentError: rows that the variable does not have.
    """

    def __init__(self, exchange: Exchange, layout: Layout, ids: np.ndarray[Any, Any], *, padded: bool = False) -> None:
        self._layout, self._shape = layout, ids.shape
        # A batch names popular rows many times; each travels once.
        self._unique, self._inverse = np.unique(ids, return_inverse=True)
        if padded and -1 in self._unique[:1]:
            # Its place is now -1, that of the zeros behind all rows.
            self._unique, self._inverse = self._unique[1:], self._inverse - 1
        if self._unique.size and not 0 <= self._unique[0] <= self._unique[-1] < layout.shape[0]:
            raise ArgumentError(
                f"rows {self._unique[0]} to {self._unique[-1]} were asked for of a variable with {layout.shape[0]}. "
                "HINT: check the ids; they are not wrapped or clipped."
            )
        self._places: list[tuple[int, int, Any]] = []
        for shard, mask in layout.rows(self._unique):
            local = self._unique[mask] - (shard.start if layout.split else 0)
            self._places.append((shard.server, exchange.gather(shard, local), mask))

    def result(self, rows: dict[int, list[Any]]) -> np.ndarray[Any, Any]:
        """The rows, of shape `(*ids.shape, *row shape)`, out of the servers' answers."""
        found = np.empty((len(self._unique) + 1, *self._layout.shape[1:]), self._layout.dtype)
        found[-1] = 0
        for server, place, mask in self._places:
            found[:-1][mask] = rows[server][place]
        return found[self._inverse.reshape(-1)].reshape(*self._shape, *self._layout.shape[1:])


def summed_rows(ids: ArrayLike, rows: ArrayLike) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Each id once, with the sum of its rows."""
    ids, rows = np.asarray(ids).reshape(-1), np.asarray(rows)
    rows = rows.reshape(len(ids), *rows.shape[1:])
    if not len(ids):
        return ids, rows
    # Stable, so that rows of one id are added in the order of the batch, and give the same sum each time.
    order = np.argsort(ids, kind="stable")
    unique, starts = np.unique(ids[order], return_index=True)
    return unique, np.add.reduceat(rows[order], starts, axis=0)
