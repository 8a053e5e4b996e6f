"""Forks of a process that has imported the library: fine before JAX starts, and an error in the child afterwards."""

from __future__ import annotations

import pytest

from processes import run_python

pytestmark = pytest.mark.slow

PROGRAM = """
    import os, sys, warnings
    import numpy as np
    import jaxtribute as jd

    warnings.simplefilter("ignore")  # JAX's own, in the parent

    def train():
        strategy = jd.MirroredStrategy()
        with strategy.scope():
            variable = jd.Variable(1.0, aggregation=jd.VariableAggregation.MEAN)
        step = jd.function(lambda: strategy.run(lambda: variable.assign_add(1.0)))
        step()
        return step, variable

    def tried(what, action):
        try:
            print(what, action() and "works", flush=True)
        except jd.errors.ContextError as error:
            print(what, "refused:", error, flush=True)

    if sys.argv[1] == "started":
        step, variable = train()
    scope = jd.MirroredStrategy().scope() if sys.argv[1] == "started" else None
    if scope is not None:
        scope.__enter__()
    child = os.fork()
    if child == 0:
        tried("train", train)
        if scope is not None:
            tried("step", step)
            tried("assign", lambda: variable.assign(2.0))
            tried("scope", lambda: jd.get_strategy())
            scope.__exit__(None, None, None)
            tried("outside", lambda: jd.Variable(0.0))
            print("numpy", np.ones(2).sum(), flush=True)
        os._exit(0)
    print("child", os.waitpid(child, 0)[1])
    if scope is not None:
        scope.__exit__(None, None, None)
    train()
    print("parent works")
"""


def test_a_fork_before_jax_starts_works() -> None:
    assert run_python(PROGRAM, "fresh", devices=2).splitlines() == ["train works", "child 0", "parent works"]


def test_a_child_of_a_process_that_has_started_jax_is_told() -> None:
    lines = run_python(PROGRAM, "started", devices=2, timeout=120).splitlines()
    *refused, numpy, child, parent = lines
    assert [line.partition(" ")[0] for line in refused] == ["train", "step", "assign", "scope", "outside"]
    for line in refused:
        assert "refused: process" in line
        assert "after JAX had started there" in line
        assert "HINT: start it anew" in line
    assert [numpy, child, parent] == ["numpy 2.0", "child 0", "parent works"]
