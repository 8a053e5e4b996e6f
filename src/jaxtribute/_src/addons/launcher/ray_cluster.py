"""A job on an existing Ray cluster: Ray places its workers, and starts them again where a machine is lost."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from jaxtribute._src.addons.launcher.attempt import Kind, Outcome
from jaxtribute._src.addons.launcher.escalation import Signal
from jaxtribute._src.addons.launcher.leader import LOOK_EVERY_S, SPEAK_EVERY_S, Leader, Node
from jaxtribute._src.addons.launcher.node import LocalNode, Start
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.launcher.terminal import carried_to, say, write
from jaxtribute.errors import ClusterError, DeadlineError, JaxtributeError
from jaxtribute.extending import ExitCode, Folder

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
"""Options of `ray.init`: Ray says nothing but errors."""
_JOIN_S = 90.0
"""Seconds in which a cluster is asked again, as a busy one may not answer within Ray's own minute."""
_CONCURRENT = 8
_PIECES = 64
"""Pieces of output that may be on their way to the launcher."""
_PATIENCE_S = 0.5
_ASK_AGAIN_S = 0.2
_TAKEN_ALONG = ("JAX", "XLA_", "NCCL_")
"""Beginnings of the environment variables that workers get from the launcher; the others are those of their node."""

_Piece = tuple[bytes | None, bytes] | str | Outcome | None


def join(address: str, patience_s: float) -> None:
    """Joins a Ray cluster.

    Args:
      address: of the cluster, as `ray.init` takes it.
      patience_s: how long a cluster that is being started may be without a node on this machine, in seconds.

    Raises:
      ClusterError: there is no such cluster, or this machine is none of its nodes.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            ray.init(address, **QUIET)
            return
        except (ConnectionError, exceptions.RayError, ValueError) as error:
            if isinstance(error, ConnectionError) and time.monotonic() < end:
                continue  # Ray has waited a minute
            text = f"the Ray cluster at {address} cannot be joined: {error}"
            hint = "does it run, and is this machine one of its nodes?"
            if isinstance(error, exceptions.AuthenticationError) or "InvalidAuthToken" in str(error):
                hint = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's, as on its nodes."
            raise ClusterError(f"{text}. HINT: {hint}") from error


class WorkerActor:
    """The process of Ray's that stands for a worker, which it starts beside itself, once for each start of the job.

    Args:
      options: of the launch, with one worker.
      directory: the launcher's; None if Ray has brought the program's files.
      python: the launcher's Python, which may lie elsewhere here.
    """

    def __init__(self, options: Options, directory: str | None, python: str) -> None:
        if directory is not None:
            os.chdir(directory)
        if options.command[0] == python:
            options = replace(options, command=(sys.executable, *options.command[1:]))
        if options.max_restarts or options.preemptions:
            self._folder = Folder()
            options = replace(options, programs=Path(self._folder.path))
        self._node = LocalNode(options, ray.util.get_node_ip_address())

    async def reserve(self) -> list[str]:
        """Address of the worker in the next start."""
        return self._node.reserve()

    async def run(self, start: Start) -> AsyncGenerator[_Piece]:
        """Starts the worker; gives what it prints, piece by piece, and how it ended."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[_Piece] = asyncio.Queue()
        room = threading.Semaphore(_PIECES)

        def put(piece: _Piece) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def print_piece(prefix: bytes | None, data: bytes) -> None:
            # A worker that prints faster than Ray carries is held up, though never for good.
            room.acquire(timeout=_PATIENCE_S)
            put((prefix, data))

        with carried_to(print_piece, put):
            job = asyncio.ensure_future(self._node.run(start))
            job.add_done_callback(lambda _: put(None))
            while (piece := await pieces.get()) is not None:
                room.release()
                yield piece
            yield job.result()

    async def stop(self) -> None:
        """Ends the worker because of a failure elsewhere."""
        self._node.stop()

    async def forward(self, number: Signal) -> None:
        """Hands a signal on to the worker."""
        self._node.forward(number)


class RayWorker:
    """A worker that Ray has placed, as the launcher sees it.

    Args:
      number: among the workers.
      actor: its process of Ray's.
    """

    def __init__(self, number: int, actor: Any) -> None:
        self.number, self._actor = number, actor

    async def addresses(self, patience_s: float) -> list[str]:
        """Its address in the next start; waits while Ray places it, or starts it again.

        Raises:
          DeadlineError: it does not come in time.
        """
        end = time.monotonic() + patience_s
        while True:
            try:
                return await asyncio.wait_for(self._actor.reserve.remote(), max(end - time.monotonic(), 0))
            except exceptions.ActorUnavailableError:
                await asyncio.sleep(_ASK_AGAIN_S)  # Ray is starting it again
            except exceptions.ActorDiedError as error:
                raise ClusterError(
                    f"worker {self.number} cannot be started on Ray: {error}. HINT: has every node this folder? "
                    "Else `ray job submit --working-dir . -- jaxtribute launch --ray auto ...` brings the files."
                ) from error
            except TimeoutError:
                raise DeadlineError(
                    f"Ray has not placed worker {self.number} within {patience_s:.0f} s; it places all or none. HINT: "
                    "`ray status` shows what the cluster has and what is asked for (--gpus-per-worker, --resources)."
                ) from None

    async def run(self, start: Start) -> Outcome:
        """Starts the worker and waits until it has ended; what it prints is shown meanwhile."""
        try:
            async for reference in self._actor.run.options(num_returns="streaming").remote(start):
                piece = await reference
                if isinstance(piece, Outcome):
                    return piece
                if isinstance(piece, str):
                    say(piece)
                else:
                    write(*piece)
        except exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, JaxtributeError) else error from None
        except exceptions.RayError:
            pass
        return Outcome(
            Kind.FAILED, ExitCode.ELSEWHERE, words=f"has lost worker {self.number}'s process on Ray", killed=1
        )

    def stop(self) -> None:
        """Ends it because of a failure elsewhere."""
        self._actor.stop.remote()

    def forward(self, number: Signal) -> None:
        """Hands a signal on."""
        self._actor.forward.remote(number)

    def give_up(self, *, again: bool) -> None:
        """Ends its process of Ray's, with the worker; Ray starts another one if `again`."""
        ray.kill(self._actor, no_restart=not again)


class RayLeader(Leader):
    """The launcher of a job whose workers Ray places, restarts and ends.

    Args:
      options: of the launch.

    Raises:
      ClusterError: the Ray cluster cannot be joined.
    """

    def __init__(self, options: Options) -> None:
        assert options.ray is not None
        # Before the launcher's own handlers of signals, as Ray sets some.
        join(options.ray, _JOIN_S)
        address: str = ray.get_runtime_context().gcs_address
        taken = {name: value for name, value in os.environ.items() if name.startswith(_TAKEN_ALONG)}
        # A program with parameter servers starts them on the same cluster.
        variables = {**taken, "RAY_ADDRESS": address, **options.variables}
        super().__init__(replace(options, variables=variables))
        self._places: list[RayWorker] = []
        self._group: Any = None

    async def run(self) -> int:
        """Runs the job to its end; the exit code.

        Raises:
          ClusterError: Ray cannot start the workers.
          DeadlineError: the cluster has no place for them.
        """
        try:
            await self._place()
            return await self._supervise()
        finally:
            # They would end with this process, too, though later.
            for place in self._places:
                place.give_up(again=False)
            if self._group is not None:
                remove_placement_group(self._group)
            ray.shutdown()

    async def _place(self) -> None:
        options = self._options
        needs = {"CPU": 1.0, "GPU": float(options.gpus or 0), **options.resources}
        # All workers or none: half of a job that waits would keep its places from others.
        self._group = placement_group([{name: amount for name, amount in needs.items() if amount}] * options.workers)
        actor: Any = ray.remote(WorkerActor)
        brought = "working_dir" in ray.get_runtime_context().runtime_env
        one, directory = replace(options, workers=1), None if brought else str(Path.cwd())
        for number in range(options.workers):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
            made = actor.options(
                num_cpus=needs["CPU"],
                num_gpus=needs["GPU"],
                resources={name: amount for name, amount in needs.items() if name not in ("CPU", "GPU")},
                scheduling_strategy=strategy,
                max_restarts=-1,
                max_concurrency=_CONCURRENT,
            ).remote(one, directory, sys.executable)
            self._places.append(RayWorker(number, made))

    async def _gather(self, *, again: bool) -> tuple[list[Node], list[list[str]]]:
        patience_s = self._options.join_timeout_s
        asked = asyncio.gather(*[place.addresses(patience_s) for place in self._places])
        spoken = time.monotonic()
        while not (await asyncio.wait([asked], timeout=LOOK_EVERY_S))[0]:
            if self._asked is not None:
                asked.cancel()
                return [], []
            if time.monotonic() - spoken > SPEAK_EVERY_S:
                spoken = time.monotonic()
                self._inform(f"waits for Ray to place {len(self._places)} worker(s); `ray status` tells what is free")
        return list(self._places), asked.result()

    def _give_up(self, node: Node) -> None:
        if isinstance(node, RayWorker):
            node.give_up(again=True)
