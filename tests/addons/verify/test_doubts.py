"""What is not verified never looks verified: the table on the page, row by row, and steps that end there."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.verify.arrangements import Arrangement
from jaxtribute._src.addons.verify.doubts import kept_for_good
from jaxtribute._src.addons.verify.sources import Place
from jaxtribute._src.addons.verify.verdict import Verdict
from verified_programs import arrays

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "verify.md"
ROWS = re.findall(r"^\| ([a-z].*) \| (\d) \|$", PAGE.read_text(encoding="utf-8").partition("| NOT VERIFIED |")[2], re.M)
EVEN, UNEVEN = Arrangement((6, 6)), Arrangement((6, 5))
HERE = Place(__file__, 1)
COMPARED: dict[str, Any] = {"tried": [EVEN], "outputs": 2, "results": 3}
TABLE: dict[str, dict[str, Any]] = {
    "nothing was compared": {"outputs": 0},
    "a result that looks like the state": {"pending": ["the result[0]"]},
    "a branch is not taken, and each": {"parted": [HERE]},
    "a variable is written": {"missing": ["w is written on one device and not on 2 replicas"]},
    "a number of replicas": {"stored": [kept_for_good("N")]},
    "the program has uneven batches": {"uneven": True, "refused": [(UNEVEN, "raises ValueError")]},
    "nothing that is trained changes": {"still": True},
    "what is trained is NaN": {"blank": ["w"]},
    "replicas without rows differ": {"idle": True, "unsure": "w differs", "notes": ["w differs"]},
}
NOTED: list[dict[str, Any]] = [
    {"untaken": [HERE]},
    {"notes": ["the result is a value of each replica"]},
    {"refused": [(UNEVEN, "raises ValueError")]},
    {"unsure": "w differs", "notes": ["w differs"]},
]


def test_the_table_is_that_of_the_page() -> None:
    assert len(ROWS) == len(TABLE)
    assert all(row.startswith(name) for (row, _), name in zip(ROWS, TABLE, strict=True))


@pytest.mark.parametrize("row", range(len(TABLE)), ids=list(TABLE))
def test_what_is_not_verified_never_looks_verified(row: int) -> None:
    verdict = Verdict("step", **{**COMPARED, **list(TABLE.values())[row]})
    assert verdict.status == int(ROWS[row][1])
    assert not verdict.right
    assert verdict.unverified
    assert "NOT VERIFIED" in str(verdict)
    assert ": as on one device" not in str(verdict)


@pytest.mark.parametrize("given", NOTED, ids=str)
def test_a_note_leaves_the_step_right(given: dict[str, Any]) -> None:
    verdict = Verdict("step", **{**COMPARED, **given})
    assert (verdict.status, verdict.right) == (0, True)
    assert len(verdict.unverified) == 1
    assert "not verified: " in str(verdict)
    assert "NOT VERIFIED" not in str(verdict)


def test_a_step_that_could_not_be_compared_is_not_right() -> None:
    verdict = Verdict("step", notes=["it runs on several workers"])
    assert (verdict.status, verdict.right) == (2, False)
    assert str(verdict).startswith("step: NOT VERIFIED")


def context() -> Any:
    return jd.get_replica_context()


def limited(x: Any, w: Any) -> Any:
    own = ((x @ w) ** 2).mean()
    w.assign_sub(jnp.where(own < 1e4, 0.1, 0.0) * context().all_reduce("SUM", x.sum(0)[:, None]))


def limited_by_all(x: Any, w: Any) -> Any:
    everyone = context().all_reduce("SUM", ((x @ w) ** 2).sum())
    w.assign_sub(jnp.where(everyone < 1e6, 0.1, 0.0) * context().all_reduce("SUM", x.sum(0)[:, None]))


def weighted_by_own(x: Any, w: Any) -> Any:
    own = ((x @ w) ** 2).mean()
    factor = jnp.where(own < 1e30, 1.0, 0.0)
    w.assign_sub(context().all_reduce("SUM", factor * x.sum(0)[:, None]))


def counted(x: Any, w: Any) -> Any:
    is_known = x[:, :1] > -1e3
    known = is_known.sum()
    mean = (x * is_known).sum(0)[:, None] / jnp.where(known > 0, known, 1)
    w.assign_sub(context().all_reduce("SUM", mean * known))


def on_the_host(x: Any, w: Any) -> Any:
    w.assign_sub(context().all_reduce("SUM", jax.pure_callback(lambda one: one, x.sum(0)[:, None], x.sum(0)[:, None])))


def on_several(x: Any, w: Any) -> Any:
    if context().num_replicas_in_sync > 1:
        w.assign_sub(context().all_reduce("SUM", x.sum(0)[:, None]))


def branching(x: Any, w: Any) -> Any:
    w.assign_sub(context().all_reduce("SUM", x.sum(0)[:, None]) * (1.0 if float(x.sum()) > 0 else 2.0))


@pytest.mark.quick_cases(4, whole=True)
@pytest.mark.parametrize(
    ("replica", "status", "told"),
    [
        (limited, (1, 2), ""),
        (weighted_by_own, (2,), "a branch that is not taken"),
        (limited_by_all, (0,), ""),
        (counted, (0,), ""),
        (on_the_host, (2,), "pure_callback"),
        (on_several, (2,), "and not on one device"),
        (branching, (2,), "asks for the value of an array"),
    ],
)
def test_steps_that_cannot_be_verified_fail_a_test(replica: Any, status: tuple[int, ...], told: str) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = jd.Variable(np.ones((3, 1), "float32"), name="w", aggregation="only_first_replica")

    def step(x: Any) -> None:
        strategy.run(lambda x: replica(x, w), (x,))

    with jax.numpy_dtype_promotion("standard"):
        found = testing.verify(step, *arrays((12, 3)), strategy=strategy, raises=False)
        assert found.status in status, str(found)
        assert found.right == (found.status == 0), str(found)
        assert any(told in one for one in found.unverified) or not told, str(found)
        if not found.right:
            with pytest.raises(testing.NotOneDeviceError):
                testing.verify(step, *arrays((12, 3)), strategy=strategy)


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, jaxtribute as jd
strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
ROWS = np.random.default_rng(0).normal(size=(36, 3)).astype("float32")
with strategy.scope():
    w = jd.Variable(np.ones((3, 1), np.float32), name="w", aggregation="only_first_replica")
@jd.function
def step(*args):
    return strategy.run(replica, args)
for batch in strategy.experimental_distribute_dataset([ROWS[:12], ROWS[12:24], ROWS[24:]]):
    LOOP
"""
LOOSE = "def replica(x):\n    return (x @ w).sum()"
STATE = "state = strategy.place(np.ones((3, 2), np.float32))\ndef replica(state, x):\n    return state + x.sum()"
BRANCH = (
    "def replica(x):\n    w.assign_sub(jax.lax.psum(jnp.where((x @ w).mean() < 1e30, 1., 0.) * x.sum(), 'replica') + w)"
)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("replica", "loop", "status", "told"),
    [
        (LOOSE, "print(step(batch))", 2, "step: NOT VERIFIED: its results are values of each replica"),
        (LOOSE, "strategy.reduce('SUM', step(batch), axis=None)", 0, "strategy.reduce of step: as on one device"),
        (STATE, "step(state, batch)", 2, "A mistake if the next call is given it"),
        (STATE, "state = step(state, batch)", 1, "not-reduced"),
        (BRANCH, "step(batch)", 2, "a branch that is not taken, by what each replica has of its own"),
    ],
    ids="loose reduced pending state branch".split(),
)
def test_the_commands_status_says_what_is_not_verified(
    replica: str, loop: str, status: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jax.devices()  # the command makes devices, and settings of their threads, only where JAX has not begun
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("@jd.function\ndef", f"{replica}\n@jd.function\ndef").replace("LOOP", loop))
    found = main(["verify", str(script)]), "".join(capsys.readouterr())
    assert found[0] == status, found[1]
    assert told in found[1], found[1]


@pytest.mark.parametrize("read", ["values", "indices"])
def test_a_step_that_reads_the_rows_of_a_gradient_is_told_what_to_write(read: str) -> None:
    strategy = jd.MirroredStrategy(2)
    with strategy.scope():
        table = jd.nn.ShardedTable(5, 2)
        optimizer = jd.Optimizer(optax.sgd(1.0), [table])

    def replica(ids: Any) -> None:
        gradients: Any = jd.grad(lambda: jd.nn.embedding_lookup(table, ids).sum(), [table])()
        assert getattr(gradients[0], read) is not None
        optimizer.apply_gradients(gradients)

    (ids,) = strategy.experimental_distribute_dataset([np.arange(4)])
    verdict = testing.verify(lambda ids: strategy.run(replica, (ids,)), ids, raises=False)
    assert re.search(f"reads '{read}' of an array.*plain variable.*HINT: clip or scale", str(verdict), re.DOTALL)
