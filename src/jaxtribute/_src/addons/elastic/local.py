"""Local training: islands that train alone for some steps, and meet then."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.elastic.apart import Apart
from jaxtribute._src.addons.elastic.common import Changes, Common, Kind
from jaxtribute._src.addons.elastic.courier import Ahead
from jaxtribute._src.addons.elastic.exchange import Islands
from jaxtribute._src.addons.elastic.journal import CannotKeep, Entry, described, packed, rebuilt, unpacked
from jaxtribute._src.addons.elastic.membership import View
from jaxtribute._src.addons.elastic.program import shapes_of
from jaxtribute._src.addons.elastic.runtime import IslandMesh
from jaxtribute._src.addons.elastic.shares import NOT_ITS_OWN, Rows, bounds
from jaxtribute._src.addons.elastic.steps import Step
from jaxtribute._src.addons.elastic.variables import check_known
from jaxtribute._src.addons.elastic.window import Window, given
from jaxtribute.errors import ClusterError, ContextError, VariableError
from jaxtribute.extending import Capture, EagerStep, Program, Programs, Update
from jaxtribute.typing import Device, HostArray, Nest

R = TypeVar("R")
Outcome = tuple[Changes, Sequence[HostArray], Sequence[HostArray]]
"""Changes of parameters that this island has sent, their means, and what becomes of other variables."""
_LOG = logging.getLogger(__name__)


class LocalMesh(IslandMesh):
    """The devices of an island that trains alone, and the others, whom it meets after each `every` steps.

    Args:
      devices: one for each replica of this island.
      islands: this island among the others.
      every: steps between two meetings.
      overlap: how many of these the changes of parameters have to travel.
      fragments: number of parts of the model, of which a meeting is about one.
    """

    def __init__(
        self, devices: Sequence[Device], islands: Islands, every: int, overlap: int = 0, fragments: int = 1
    ) -> None:
        super().__init__(devices, islands)
        self.program = None  # functions without the island's variables are no concern of the others
        self.register.written = self._written_outside
        islands.state, islands.bind = self._state, self._take_state
        self.shared = None
        self.apart = Apart(self, overlap > 0 or fragments > 1)
        self.rows = Rows()
        self.common: Common
        self._every, self._departs, self._window = every, every - overlap, Window()
        self._examples = [0] * fragments
        """Numbers of examples since changes of each fragment were last computed."""
        self._whole = False
        """True for a meeting that is about all fragments."""
        self._joins = False
        """True for the meeting in which this island joins, of which its program knows nothing."""
        self._departed: tuple[Changes, Ahead] | None = None
        """Changes that travel already."""
        self._running = False
        self._after = b""
        """The variables' values after the meeting in which this island has joined, until its program has come there."""
        self._reads_ahead: dict[int, HostArray | None] = {}
        self._replicas: list[tuple[int, int]] = []
        self._assigned: list[Variable] = []

    def introduce(self) -> None:
        """Tells the other islands how many replicas this one has, and hears how many they have."""
        self._replicas = self.step(Step("replicas of the islands"), lambda view: self._introduced(view)[0])

    def share(self, total: int) -> tuple[int, int]:
        """The rows of a batch of all islands that are this one's: the same until they meet again."""
        return bounds(total, self._replicas, self.islands.me.rank)

    @property
    def catches_up(self) -> bool:
        return super().catches_up or self._window.ahead is not None

    @property
    def parted(self) -> bool:
        """True if steps have been taken since the islands met."""
        return self._window.steps > 0

    # Calls of programs and of `run`.

    def call(
        self,
        run: Callable[[], Any],
        arguments: Nest,
        counts: Callable[[], bool],
        written: Sequence[Variable] = (),
        rehearse: Callable[[], None] = lambda: None,
    ) -> Any:
        """Returns what a call gives, or, while this island catches up, what another island's call gave.

        Args:
          run: the call.
          arguments: its arguments, for the number of examples.
          counts: whether it has updated parameters, once it is over.
          written: the variables that it writes besides those of the register, as far as that is known.
          rehearse: compiles what the call runs, and keeps nothing.
        """
        if self._running or self._pinned is not None:
            return run()
        if self.islands.newcomer is not None:  # nobody waits for it yet
            self._within(rehearse)
        if self.islands.newcomer is not None and self._window.ahead is None:
            self._meet()
        if self._window.ahead is not None:
            return self._next_ahead()
        self._prepare()
        rows = self.rows.within(arguments)

        def counting() -> tuple[Any, bool]:
            alone = rows is None or rows > 0
            return (run(), counts()) if alone else self._undone(run, counts, written, sums=rows != NOT_ITS_OWN)

        result, counted = self._within(counting)
        learned = (1 if rows is None else max(rows, 0)) if counted else None
        self._window.note(result, learned)
        self.common.begun()
        if learned is not None:
            self._examples = [count + learned for count in self._examples]
            if self._window.steps == self._departs < self._every:
                self._depart()
            if self._window.steps == self._every:
                self._meet()
        return result

    def _within(self, call: Callable[[], R]) -> R:
        """Makes a call as a part of a step."""
        self._running = True
        try:
            return call()
        finally:
            self._running = False

    def _prepare(self) -> None:
        """Takes note of what all islands have, before what follows changes it."""
        if not self._window.calls:
            self.common.begin()
        for variable in self._assigned:
            self.common.renew(variable)
        self._assigned.clear()

    def _undone(
        self, run: Callable[[], Any], counts: Callable[[], bool], written: Sequence[Variable], *, sums: bool
    ) -> tuple[Any, bool]:
        """Makes a call that has no example to learn from: what it writes is taken back, but for sums if `sums`."""
        variables = {id(variable): variable for variable in (*self.register.alive().values(), *written)}.values()
        before = [(variable, variable.stored.copy()) for variable in variables]
        result, counted = run(), counts()
        for variable, array in before:
            is_summed = sums and self.common.kind_of(variable) is Kind.SUM
            variable.bind(_known(variable.stored, array) if is_summed else array)
        return result, counted

    def meet(self) -> None:
        """Meets the other islands now.

        Raises:
          ContextError: it is called in a step.
        """
        if self._running or self._pinned is not None or self.executor().traced:
            raise ContextError(
                "strategy.synchronize() was called in a step, and a meeting is between steps. HINT: call it after the "
                "step, outside of jd.function and strategy.run."
            )
        if self._window.ahead is None:
            if self.islands.newcomer is None:
                self._prepare()
                self._stay()
            self._whole = True
            self._meet()
        if self._window.ahead:
            raise self._astray("meets the others")
        self._go_on()

    def _depart(self) -> None:
        """Sends what has changed, and the island goes on meanwhile."""
        changes = self.common.changes(self._examples, self.register.living(), early=True)
        self._departed = changes, self.islands.send_ahead(changes.message, "changes of parameters")
        self._forget(changes)

    def _stay(self) -> None:
        """Takes back what has departed: all that the islands have learned until now is to be common."""
        if self._departed is not None:
            changes, _ = self._departed
            before = zip(changes.turn, changes.examples, self._examples, strict=True)
            self._examples = [now + then if sent else now for sent, then, now in before]
            self._departed = None

    def _forget(self, changes: Changes) -> None:
        """Counts the examples of what was sent from here on."""
        self._examples = [0 if sent else count for sent, count in zip(changes.turn, self._examples, strict=True)]

    def _meet(self) -> None:
        ahead = self.islands.newcomer is not None
        self.step(_Meeting(self), self._met)
        if not ahead:
            self._window = Window()
        elif self.islands.newcomer is None:
            # The program has still to go through the window before, and what it assigns there the others have had.
            self._after = self.register.state()

    def _go_on(self) -> None:
        """Begins another window, with what all islands have."""
        self._window = Window()
        if self._after:
            self.register.take(self._after)
            self._after = b""

    def _next_ahead(self) -> Any:
        window = self._window
        if not window.ahead:
            raise self._astray("takes a further step")
        counts, result = window.ahead.popleft()
        window.steps += counts
        if window.steps == self._every:
            self._go_on()
        return given(result, self)

    def _astray(self, what: str) -> ClusterError:
        return ClusterError(
            f"island {self.islands.me.rank} joins, and its program {what} where the others' did not. HINT: all islands "
            "must run the same program, with the same data; look for a branch that depends on the rank or on a loss."
        )

    # Meetings.

    def _met(self, view: View) -> tuple[list[tuple[int, int]], Outcome, list[Any]]:
        # An island that joins while the others have taken steps has taken none: it brings no changes of its own.
        silent = self._window.ahead is not None
        told = self._window.told() if self._window.ahead is None else [list(call) for call in self._window.ahead]
        replicas, living, here, whole = self._introduced(view)
        rest = self.common.rest(self._window.examples, living, silent=silent)
        if self._departed is None:
            changes, ahead = self.common.changes(self._examples, living, whole=whole, silent=silent), None
        else:
            changes, ahead = self._departed
        if ahead is not None and here:
            parts = self.islands.collect(ahead) or [changes.message]
            rests = self.islands.gather(rest, "what else has changed on the islands")
        else:
            changes = changes.of(living) if changes.early else changes
            both = self.islands.gather([*changes.message, *rest], "what has changed on the islands")
            end = len(changes.message)
            parts, rests = [each[:end] for each in both], [each[end:] for each in both]
        outcome = changes, self.common.mean_changes(changes, parts), self.common.combined_rest(rests)
        return replicas, outcome, told

    def _introduced(self, view: View) -> tuple[list[tuple[int, int]], HostArray, bool, bool]:
        """Learns who meets.

        Returns: the islands' numbers of replicas; for each variable's number whether all islands still have it; whether
        what each of them has sent ahead was for this step, in this view, and of the same parameters; and whether the
        meeting is about all fragments, which one that joins does not know.
        """
        mark = np.full(3, -1, np.int64)
        if self._departed is not None:
            changes, ahead = self._departed
            mark[:] = *ahead.head[:2], changes.mark
        about = [self.size, self._whole, self._window.steps, self._joins]
        own = [np.asarray(about, np.int64), self.register.living(), mark]
        parts = self.islands.gather(own, "who meets, and which variables they have")
        ranks = [member.rank for member in view.members]
        replicas = [(rank, int(part[0][0])) for rank, part in zip(ranks, parts, strict=False)]
        _check_together(dict(zip(ranks, [part[0] for part in parts], strict=False)))
        expected = view.number, self.islands.committed, mark[2]
        here = all(np.array_equal(part[2], expected) for part in parts)
        whole = any(part[0][1] for part in parts)
        return replicas, np.min([part[1] for part in parts], axis=0, initial=1), here, whole

    def take(self, replicas: list[tuple[int, int]], outcome: Outcome) -> None:
        """Goes on with what the islands have come to."""
        self.common.take(*outcome)
        self._replicas = replicas
        if not outcome[0].early:
            self._forget(outcome[0])
        self._departed, self._whole, self._joins = None, False, False

    def go_ahead(self, replicas: list[tuple[int, int]], calls: list[Any]) -> None:
        """Takes note of what another island's calls gave, for this one's."""
        self._replicas = replicas
        self._window = Window(ahead=deque((counts, result) for counts, result in calls))

    def _replayed(self, kind: Step[Any], entry: Entry, view: View) -> Any:
        self._reads_ahead = entry.reads
        return super()._replayed(kind, entry, view)

    def _reads(self, number: int, variable: Variable) -> None:
        if self._running:  # a step's own, which nobody else needs to know
            return
        known = self._reads_ahead.get(number) if self._window.ahead else None
        if known is not None and variable.stored.is_deleted():
            variable.bind(variable.policy.place(known))
            return
        super()._reads(number, variable)

    def _written_outside(self, variable: Variable, update: Update) -> None:
        """Called before code outside of replicas writes a variable.

        Raises:
          VariableError: it adds to what islands count, while they train alone.
        """
        within = self._running or self._pinned is not None or self.executor().traced
        if within or not self._window.calls or self.common.kind_of(variable) is not Kind.SUM:
            return
        if update is not Update.ASSIGN:
            raise VariableError(
                f"{variable.name} sums what the islands add in steps, and {update.value} outside of one is by all of "
                "them, after some steps that they have taken alone. HINT: add in a step, assign a value, or call "
                "strategy.synchronize() before."
            )
        self._assigned.append(variable)

    # For islands that join.

    def _state(self) -> bytes:
        arrays: list[HostArray] = []
        try:
            calls, problem = described(self._window.told(), arrays), ""
        except CannotKeep as reason:
            arrays, calls, problem = [], None, f"the steps since the islands last met gave {reason}"
        common = self.common.state()
        variables = np.frombuffer(self.register.state(), np.uint8)
        return packed([calls, problem, len(arrays)], [*arrays, *common, variables])

    def _take_state(self, state: bytes | bytearray) -> None:
        (calls, problem, count), arrays, _ = unpacked(state)
        if problem:
            raise ClusterError(
                f"island {self.islands.me.rank} cannot join: {problem}. HINT: return small values from steps, and let "
                "the other islands go on without this one."
            )
        *arrays, variables = arrays
        self.register.take(variables.tobytes())
        self.common.restore(arrays[count:])
        told = rebuilt(calls, arrays[:count], self, self.islands.view)
        self._joins = True
        if told:  # else no island has taken a step since they last met
            self._window = Window(ahead=deque((counts, result) for counts, result in told))


def _known(array: Any, before: Any) -> Any:
    """An array, with the elements that it had before in place of NaN, which means over no examples come to."""
    return jnp.where(jnp.isnan(array), before, array) if jnp.issubdtype(array.dtype, jnp.inexact) else array


def _check_together(told: dict[int, HostArray]) -> None:
    """Checks that all islands meet after the same steps.

    Raises:
      ClusterError: one of them has called `synchronize` alone, or has taken more steps.
    """
    known = {rank: (bool(whole), int(steps)) for rank, (_, whole, steps, joins) in told.items() if not joins}
    if len(set(known.values())) <= 1:
        return
    each = [
        f"island {rank} {'calls synchronize()' if whole else 'meets'} after {steps} step(s)"
        for rank, (whole, steps) in known.items()
    ]
    raise ClusterError(
        f"the islands are not at the same step: since they last met, {', '.join(each)}. HINT: all must take the same "
        "steps, and call strategy.synchronize() after the same one; look for a branch that depends on the rank or on a "
        "loss."
    )


class _Meeting(Step[Any]):
    """A meeting of the islands: the one kind of step that they take together."""

    def __init__(self, mesh: LocalMesh) -> None:
        super().__init__("meeting of the islands")
        self._mesh = mesh

    def kept(self, result: Any) -> Any:
        replicas, _, told = result
        return [replicas, told]

    def finished(self, result: Any, view: View) -> None:
        replicas, outcome, _ = result
        self._mesh.take(replicas, outcome)

    def replayed(self, kept: Any, view: View) -> None:
        self._mesh.go_ahead(*kept)

    def written(self) -> None:
        return None


class LocalProgram(Program):
    """A compiled function of an island: the program that its inner strategy alone would run.

    Args:
      first: as for `Program`.
      rest: likewise.
    """

    def __init__(self, first: Capture, *rest: Any) -> None:
        touched = (*first.executor.inputs, *first.executor.written)
        mesh = next(v.policy.mesh for v in touched if isinstance(v, Variable) and v.policy.program is LocalProgram)
        assert isinstance(mesh, LocalMesh)
        for variable in first.executor.written:
            if isinstance(variable, Variable) and not variable.derived:
                check_known(variable)
        self._islands, self._has_run = mesh, False
        self._rehearsed: set[Any] = set()
        """The shapes of arguments for which it has been compiled while others trained."""
        super().__init__(first, *rest)

    def __call__(self, leaves: Sequence[Any], within: EagerStep | None = None, given: Any = None) -> Any:
        """Takes one step."""
        if within is not None:  # which counts as a whole
            return super().__call__(leaves, within, given)

        def run() -> Any:
            self._has_run = True
            return super(LocalProgram, self).__call__(leaves, within, given)

        return self._islands.call(run, leaves, self._updates, self.donated, partial(self._rehearse, leaves, given))

    def _rehearse(self, leaves: Sequence[Any], given: Any) -> None:
        """Compiles the program by a call on zeros, of which nothing is kept."""
        shapes = shapes_of(leaves)
        if shapes in self._rehearsed or Programs.opened(self._step.closed).effects:  # which would be seen twice
            return
        self._rehearsed.add(shapes)
        before = [(variable, variable.stored) for variable in (*self.donated, *self.kept)]
        own = [leaf.copy() if place in self.donated_leaves else leaf for place, leaf in enumerate(leaves)]
        try:
            for variable, _ in before:
                variable.bind(variable.policy.place(np.zeros(variable.shape, variable.dtype)))
            self._step.once(own, given, None)
        except Exception as error:  # noqa: BLE001  # its own call will say so
            _LOG.debug("%s cannot be compiled ahead: %s: %s", self.name, type(error).__name__, error)
        finally:
            for variable, array in before:
                variable.bind(array)

    @property
    def view(self) -> View:
        """The view that this island is in."""
        return self._islands.islands.view

    @property
    def again(self) -> Callable[[tuple[Any, ...], dict[str, Any]], Any] | None:
        """See `Program.again`."""
        again = super().again if self._has_run else None  # and not been given another island's result
        if again is None:
            return None
        call, updates = self._islands.call, self._updates
        return lambda args, kwargs: call(partial(again, args, kwargs), (args, kwargs), updates, self.donated)

    def _updates(self) -> bool:
        return any(map(self._islands.common.is_parameter, self.donated))
