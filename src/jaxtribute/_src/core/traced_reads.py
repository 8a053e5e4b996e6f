"""Notes when functions that JAX keeps traced are out of date, because a variable that they read has changed since.

JAX traces the bodies of loops and branches, `jax.checkpoint`, `jax.jit` and others once, and keeps them by the identity
of the function. A variable's value becomes part of such a body. Two contexts that JAX makes part of the key of all its
caches tell it when the body has to be traced again:

- the *view*, for each thread: whose values a read gives, those of a program being traced, of a differentiated function,
  of one replica, or the stored ones;
- the *generation*, for all threads: counts writes of stored values that such a body has read.

A new view or generation makes JAX compile again what runs eagerly, too, so there is one only if a read has made it
necessary: a program that reads no variable in such a body never pays.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Generator, Hashable
from contextlib import contextmanager

import jax

_LOG = logging.getLogger(__name__)

_MANY = 16
"""Number of repeated traces, because of one variable, after which a warning says why."""
_AGAIN = "_traced_again"

_CONTEXT = -1
"""Stands among the ids of variables for the strategy and the replica in force."""


class TracedReads:
    """The view and the generation, and which reads they have to follow."""

    def __init__(self) -> None:
        self._views = jax.make_user_context(None)
        self._generations = jax.make_user_context(0)
        self._numbers = itertools.count(1)
        self._told = self.uncompiled = False  # the latter is True once a compiled step runs so, which a warning tells
        self.active = False
        """True once a kept function has read anything: compiled programs then run in `steady`."""
        self.generation = 0
        """Number of times that stored values have changed that kept functions have read; from the numbers of views."""
        self.read: set[int] = set()
        """The ids of all variables that kept functions have read."""
        self.stored: set[int] = set()
        """Of those, the ones whose stored values were read in this generation."""
        self.contexts = False
        """True once a kept function has asked for the strategy or the replica in force."""

    def fresh(self) -> int:
        """A view that nothing has been traced in."""
        return next(self._numbers)

    def show(self, view: Hashable) -> bool:
        """Makes `view` the calling thread's; True if it was another one."""
        if self._views.value == view:
            return False
        self._views(view).__enter__()  # never left: the next call says what comes after it
        return True

    def note_stored(self, variable: object, *, remote: bool) -> None:
        """Notes a read of a stored value in a kept function; to be called before the read.

        Args:
          variable: the variable.
          remote: whether other processes may change its value at any time.
        """
        self.active = True
        self.read.add(id(variable))
        # What other processes change is never known to be up to date: such a trace is good for this once.
        if remote:
            self.renew(variable)
        else:
            self.stored.add(id(variable))

    def note_context(self) -> None:
        """Notes that a kept function has asked for the strategy or the replica in force."""
        self.active = True
        self.read.add(_CONTEXT)
        if not self.contexts:
            self.contexts = True
            self.renew()

    def changed(self, variable: object) -> None:
        """Called when a variable's stored value was replaced."""
        if id(variable) in self.stored:
            self.renew(variable)

    def renew(self, variable: object = None) -> None:
        """Begins a generation: JAX traces again what it kept before."""
        self.active = True
        # What is read again is noted again; a variable that nobody reads any longer costs no further generation.
        self.stored.clear()
        self.generation = next(self._numbers)
        self._generations.set_global(self.generation)
        self.repeated(variable)

    def repeated(self, variable: object) -> None:
        """Says once what it costs that eager code is compiled again and again."""
        # By variables: a program that makes one model after the other changes those of each once.
        counts = vars(self if variable is None else variable)
        counts[_AGAIN] = counts.get(_AGAIN, 0) + 1
        if counts[_AGAIN] >= _MANY and not self._told:
            self._told = True
            settled = "give all replicas as many rows in the jd.function that runs uncompiled"
            remedy = settled if self.uncompiled else "call the step as a jd.function, which is compiled once"
            _LOG.warning(
                "JAX has traced eager code anew %d times, because a loop's body, jax.checkpoint, jax.jit or the like "
                f"reads variables that have changed, now %s. HINT: {remedy}.",
                *(_MANY, getattr(variable, "name", "the context")),
            )

    @contextmanager
    def steady(self) -> Generator[None]:
        """Runs the library's own compiled functions, which read no variables: nothing makes JAX compile them again."""
        with self._views(None), self._generations(0):
            yield


traced_reads = TracedReads()
"""The state of all threads together, as JAX's caches are shared."""
