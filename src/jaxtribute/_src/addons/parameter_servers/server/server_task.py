"""The loop of one parameter server: requests in order of arrival, one at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from jaxtribute._src.addons.messaging.errors import told
from jaxtribute._src.addons.messaging.transport import Endpoint, Hub, Link, TaskSettings
from jaxtribute._src.addons.messaging.wire import Frames, Header, pack, unpack
from jaxtribute._src.addons.parameter_servers.server import saves
from jaxtribute._src.addons.parameter_servers.server.store import Answer, Store
from jaxtribute.errors import ClusterError
from jaxtribute.extending import Disk
from jaxtribute.typing import Json

_LOG = logging.getLogger(__name__)
_MIRROR_DEADLINE_S = 20.0
# What the mirror has to follow, an exchange only if it holds operations.
_CHANGES = frozenset({"exchange", "create", "delete", "optimizer"})


class ServerTask:
    """A parameter server, wherever it runs: `run` serves until `stop`.

    Args:
      index: its number.
      settings: the cluster's.
      host: the address under which other machines reach this one, if they do.
    """

    def __init__(self, index: int, settings: TaskSettings, host: str | None = None) -> None:
        self._index, self._settings = index, settings
        self._hub = Hub(settings.folder, settings.keys, host)
        self._blobs: dict[int, bytes] = {}
        self._store = Store(lambda id_: cloudpickle.loads(self._blobs[id_]))
        self._epoch = 0
        """Number of the life of the cluster's state in which this server takes part; 0 before it has any."""
        self._mirror: Link | None = None
        self._stopping = threading.Event()
        self._requests = self._waiting = 0
        self._busy_s = 0.0

    @property
    def endpoint(self) -> Endpoint:
        """Address of the server."""
        return self._hub.endpoint

    def define(self, id_: int, blob: bytes) -> None:
        """Takes code: an optimizer's transformation, or how a shard's first value is computed."""
        self._blobs[id_] = blob

    def stop(self) -> None:
        """Ends `run`; callable from any thread."""
        self._stopping.set()
        self._hub.wake()

    def run(self) -> None:
        """Serves until `stop`."""
        try:
            while not self._stopping.is_set():
                messages = self._hub.receive(None)
                start, self._waiting = time.monotonic(), len(messages)
                for route, frames in messages:
                    self._hub.send(route, self._answer(frames))
                    self._requests += 1
                    self._waiting -= 1
                self._busy_s += time.monotonic() - start
        finally:
            if self._mirror is not None:
                self._mirror.close()
            self._hub.close()

    def figures(self) -> dict[str, Json]:
        """Sizes and counts of this server, as values that JSON can hold; callable from any thread."""
        entries = list(self._store.entries.values())
        return {
            "bytes": sum(int(entry.value.nbytes) for entry in entries),
            "shards": len(entries),
            "requests": self._requests,
            "waiting": self._waiting,
            "busy": round(self._busy_s, 3),
            "mirrored": self._mirror is not None,
        }

    def _answer(self, frames: Frames) -> Frames:
        number = None
        try:
            header, arrays = unpack(frames)
            # Before anything can fail: an error that names no request would not be taken for its answer.
            number, kind = header["n"], header["t"]
            # A new process has epoch 0 until it is activated, and one that slept through a restore an old one.
            if kind not in _ALWAYS and header["e"] != self._epoch:
                return pack({"n": number, "lost": self._index, "epoch": self._epoch})
            if self._mirror is not None and kind in _CHANGES and (kind != "exchange" or header.get("ops")):
                self._copy(header, arrays)
            answer: Answer = getattr(self, f"_on_{kind}")(header, arrays)
            return pack({"n": number, **answer.header}, answer.arrays)
        except BaseException as error:  # noqa: BLE001 (whatever user code raises, the caller waits for an answer)
            _LOG.debug("a request failed", exc_info=True)
            return pack({"n": number, "error": told(error)})

    def _copy(self, header: Header, arrays: Sequence[Any]) -> None:
        """Lets the mirror do the same first, so that what is answered for is never lost."""
        assert self._mirror is not None
        if not _asked(self._mirror, header, arrays):
            _LOG.warning("server %d goes on without its mirror, which does not answer", self._index)
            self._mirror.close()
            self._mirror = None

    # Requests.

    def _on_exchange(self, header: Header, arrays: Sequence[Any]) -> Answer:
        return self._store.exchange(header, arrays)

    def _on_create(self, header: Header, arrays: Sequence[Any]) -> Answer:
        return self._store.create(header, arrays)

    def _on_initialize(self, header: Header, _: Sequence[Any]) -> Answer:
        """Makes a shard by code that came through Ray."""
        initial = cloudpickle.loads(self._blobs[header["id"]])
        made_here = np.asarray(initial(tuple(header["shape"]), header["start"]), np.dtype(header["dtype"]))
        # Such tables are written in place, so the memory must be this process's own: a view of JAX's is read-only.
        value = np.require(made_here, requirements=["C", "W", "O"])
        if value.shape != tuple(header["shape"]):
            raise ClusterError(
                f"an initial value has shape {value.shape}, its shard {tuple(header['shape'])}. "
                "HINT: the function that makes it must honour `shape`."
            )
        if self._mirror is not None:
            # The value itself, rather than the code: computed twice, random numbers might differ.
            self._copy({"keys": [header["key"]], "t": "create", "n": header["n"], "e": header["e"]}, [value])
        self._store.create_rows(header["key"], value)
        return Answer()

    def _on_delete(self, header: Header, arrays: Sequence[Any]) -> Answer:
        return self._store.delete(header, arrays)

    def _on_optimizer(self, header: Header, arrays: Sequence[Any]) -> Answer:
        return self._store.optimizer(header, arrays)

    def _on_activate(self, header: Header, _: Sequence[Any]) -> Answer:
        """Joins the cluster: takes the epoch, a mirror, and what the mirror of an earlier life of this server kept."""
        if header.get("recover"):
            link = Link(Endpoint(**header["mirror"]), self._settings.keys, once=True)
            found = _asked(link, {"t": "state", "n": 0, "e": header["epoch"]}, ())
            link.close()
            if not found:
                raise ClusterError(f"the mirror of server {self._index} does not answer. HINT: coordinator.restore().")
            self._store.load(*found)
        self._epoch = header["epoch"]
        if self._mirror is not None:
            self._mirror.close()
        self._mirror = None
        if header.get("mirror"):
            self._mirror = Link(Endpoint(**header["mirror"]), self._settings.keys, once=True)
            # Each activation sends everything: a mirror that was restarted has nothing of what came before.
            state, arrays = self._store.state()
            if not _asked(self._mirror, {"t": "load", "n": 0, "e": self._epoch, **state}, arrays):
                raise ClusterError(f"the mirror of server {self._index} takes no state.")
        return Answer()

    def _on_state(self, header: Header, _: Sequence[Any]) -> Answer:
        return Answer(*self._store.state())

    def _on_load(self, header: Header, arrays: Sequence[Any]) -> Answer:
        self._epoch = header["e"]
        self._store.load(header, arrays)
        return Answer({"ok": 1})

    def _on_save(self, header: Header, _: Sequence[Any]) -> Answer:
        path = Path(header["path"])
        saves.write_state(path, *self._store.state(lent=True))
        return Answer({"mark": Disk.checksum_of(path)})

    def _on_restore(self, header: Header, _: Sequence[Any]) -> Answer:
        self._store.load(*saves.read_state(Path(header["path"])))
        return Answer()

    def _on_sizes(self, header: Header, _: Sequence[Any]) -> Answer:
        """Bytes of each shard."""
        sizes = {str(key): int(np.asarray(entry.value).nbytes) for key, entry in self._store.entries.items()}
        return Answer({"sizes": sizes})


_ALWAYS = frozenset({"activate", "load"})
"""Requests that say which life they begin."""


def _asked(link: Link, header: Header, arrays: Sequence[Any]) -> tuple[Header, list[Any]] | None:
    """Another server's answer; None if it gives none, or an error."""
    link.send(pack(header, arrays))
    frames = link.receive(_MIRROR_DEADLINE_S)
    if frames is None:
        return None
    answer, values = unpack(frames)
    return None if "error" in answer or "lost" in answer else (answer, values)
