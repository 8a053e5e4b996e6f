"""Steps that are not one plain `jd.function`: loops, iterators, `fit`, eager reductions, functions of coordinators."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import in_threads
import jaxtribute as jd
from jaxtribute import testing
from jaxtribute._src.addons.verify.arrangements import arrangements
from jaxtribute._src.addons.verify.batches import chosen_rows
from jaxtribute._src.addons.verify.holding import total_of
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.watching import KINDS, Watcher
from jaxtribute.experimental import observe
from processes import run_python
from replicas import another_operation
from samples import ALL_CASES
from verified_programs import arrays, optimizer, variables

ROWS = 12
ROOT = Path(__file__).parents[3]


def context() -> Any:
    return jd.get_replica_context()


def replicas() -> jd.Strategy:
    return jd.MirroredStrategy(["CPU:0", "CPU:1"])


def step_of(
    strategy: jd.Strategy, loss: Callable[..., Any], transform: Any, change: Any = None, how: Any = "SUM"
) -> Any:
    """A step that minimizes a loss of two variables and the batch; `change` is made of each replica's gradients."""
    held = variables(strategy, (4, 3), (3, 2))
    updates = optimizer(strategy, transform, held)

    def replica(x: Any, y: Any) -> None:
        _, gradients = jd.value_and_grad(lambda: loss(*held, x, y), held)()
        updates.apply_gradients(gradients if change is None else change(gradients), how)

    @jd.function
    def step(x: Any, y: Any) -> None:
        strategy.run(replica, (x, y))

    return step


def squares(w: Any, v: Any, x: Any, y: Any) -> Any:
    return ((x @ w @ v - y) ** 2).sum() / ROWS


def mean_and_sum(w: Any, v: Any, x: Any, y: Any) -> Any:
    return squares(w, v, x, y) + 0.1 * ((x @ w) ** 2).mean()


def means_alone(w: Any, v: Any, x: Any, y: Any) -> Any:
    return ((x @ w @ v - y) ** 2).mean()


def local_times_replicas(w: Any, v: Any, x: Any, y: Any) -> Any:
    return ((x @ w @ v - y) ** 2).sum() / (x.shape[0] * context().num_replicas_in_sync)


def rows_in_turn(w: Any, v: Any, x: Any, y: Any) -> Any:
    def body(total: Any, row: Any) -> Any:
        return total + ((row[0] @ w @ v - row[1]) ** 2).sum(), None

    return jax.lax.scan(body, 0.0, (x, y))[0] / x.shape[0]


def counted(w: Any, v: Any, x: Any, y: Any) -> Any:
    overlap = (jax.nn.sigmoid(x @ w @ v) * jax.nn.sigmoid(y)).sum()
    return -overlap / (jax.nn.sigmoid(y).sum() + 1)


def clipped(gradients: Any) -> Any:
    norm = optax.tree.norm(gradients)
    return jax.tree.map(lambda one: one * jnp.minimum(1.0, 1e3 / norm), gradients)


def unit(gradients: Any) -> Any:
    return [one / (jnp.linalg.norm(one + 0.0) + 1e-8) for one in gradients]


@pytest.mark.parametrize(
    ("loss", "transform", "change", "how", "name", "text"),
    [
        # The bound is far off in this batch, and what is clipped hides how large gradients are.
        (squares, optax.sgd(0.1), clipped, "SUM", "gradient-before-reduction", "norm"),
        (squares, optax.chain(optax.clip_by_global_norm(1e-3), optax.sgd(0.1)), None, "MEAN", "mean-of-sums", "apply"),
        (squares, optax.sgd(0.1), unit, "SUM", "gradient-before-reduction", "norm"),
        (mean_and_sum, optax.sgd(0.1), None, "SUM", "local-mean", "mean"),
        (rows_in_turn, optax.sgd(0.1), None, "SUM", "local-mean", "shape[0]"),
        (counted, optax.sgd(0.1), None, "SUM", "local-total", "sum()"),
        (local_times_replicas, optax.sgd(0.1), None, "SUM", "mean-of-means", "shape[0]"),
    ],
)
@pytest.mark.slow
def test_a_mistake_in_a_form_of_its_own_is_named(
    loss: Any, transform: Any, change: Any, how: str, name: str, text: str
) -> None:
    strategy = replicas()
    step = step_of(strategy, loss, transform, change, how)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        found = testing.verify(step, *arrays((ROWS, 4), (ROWS, 2)), strategy=strategy, raises=False)
    assert [one.culprit.pattern.name for one in found.findings] == [name], str(found)
    place = found.findings[0].culprit.place
    assert place is not None, str(found)
    assert place.file == __file__, str(found)
    assert text in place.whole, str(found)


def told(x: Any, beta: jd.Variable) -> None:
    beta.assign(jnp.where(x.mean() > 1e3, beta * 2.0, beta * 0.5))


def seen(x: Any, beta: jd.Variable) -> None:
    mean = context().all_reduce("SUM", x.sum()) / ROWS
    beta.assign(jnp.where(mean > 1e3, beta * 2.0, beta * 0.5))


def drawn(x: Any, beta: jd.Variable) -> None:
    beta.assign(jax.random.normal(context().fold_in(jax.random.key(x.ndim)), beta.shape))


def averaged(x: Any, beta: jd.Variable) -> None:
    beta.assign(0.9 * beta + 0.1 * x.mean(0))


@pytest.mark.parametrize(
    ("replica", "aggregation", "names"),
    [
        (told, "mean", ["decided-by-replica"]),
        (seen, "mean", []),
        (drawn, "mean", ["own-random-numbers"]),
        (drawn, "only_first_replica", []),
        (averaged, "only_first_replica", ["one-replica"]),
    ],
)
def test_what_replicas_write_without_a_gradient_is_judged(replica: Any, aggregation: Any, names: list[str]) -> None:
    strategy = replicas()
    with strategy.scope():
        beta = jd.Variable(jnp.ones(4), aggregation=aggregation, trainable=False)

    @jd.function
    def step(x: Any) -> None:
        strategy.run(lambda x: replica(x, beta), (x,))

    found = testing.verify(step, *arrays((ROWS, 4)), strategy=strategy, raises=False)
    assert [one.culprit.pattern.name for one in found.findings] == names, str(found)
    assert found.right == (not names), str(found)


@pytest.mark.filterwarnings("ignore:.*takes a mean over the replicas:RuntimeWarning")
def test_means_of_means_are_right_where_the_batch_divides() -> None:
    strategy = replicas()
    step = step_of(strategy, means_alone, optax.sgd(0.1), None, "MEAN")
    found = testing.verify(step, *arrays((ROWS, 4), (ROWS, 2)), strategy=strategy)
    assert [one.culprit.pattern.name for one in found.findings] == ["mean-of-means"]
    with pytest.raises(testing.NotOneDeviceError, match="mean-of-means"):
        testing.verify(step, *arrays((ROWS - 1, 4), (ROWS - 1, 2)), strategy=strategy)


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_a_step_that_draws_its_batches_is_verified_with_them(right: bool) -> None:
    strategy = replicas()
    step = step_of(strategy, squares if right else mean_and_sum, optax.sgd(0.1)).python_function
    data = strategy.experimental_make_numpy_dataset(tuple(arrays((4 * ROWS, 4), (4 * ROWS, 2)))).batch(ROWS)
    iterator = iter(strategy.experimental_distribute_dataset(data))

    @jd.function
    def steps(iterator: Any) -> None:
        step(*next(iterator))
        step(*next(iterator))

    found = testing.verify(steps, iterator, raises=False)
    assert found.right == right, str(found)
    assert found.tried, str(found)


@pytest.mark.parametrize(("how", "name"), [("SUM", ""), ("MEAN", "mean-of-sums")])
def test_what_a_program_reduces_outside_of_its_step_is_verified(how: Any, name: str) -> None:
    strategy = replicas()
    (w,) = variables(strategy, (4, 2))
    batches = [arrays((ROWS, 4))[0]] * 2

    @jd.function
    def step(x: Any) -> Any:
        return strategy.run(lambda x: ((x @ w) ** 2).sum() / ROWS, (x,))

    watcher = Watcher(lambda _: None, None)
    with observe(watcher, *KINDS):
        for batch in strategy.experimental_distribute_dataset(batches):
            strategy.reduce(how, step(batch), axis=None)
    assert [one.culprit.pattern.name for verdict in watcher.verdicts for one in verdict.findings] == [name] * bool(name)
    assert len(watcher.verdicts) == 2


def test_a_step_that_fails_while_it_is_verified_leaves_the_strategy_as_it_was() -> None:
    strategy = replicas()
    mesh = strategy.extended.mesh
    (w,) = variables(strategy, (4, 2))
    before, policy = dict(vars(mesh)), w.policy
    calls: list[int] = []

    def replica(x: Any) -> Any:
        calls.append(x.shape[0])
        if len(calls) > 1:
            raise RuntimeError("only once")
        return (x @ w).sum()

    @jd.function
    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)

    found = testing.verify(step, *arrays((ROWS, 4)), strategy=strategy, raises=False)
    assert not found.tried
    assert "only once" in str(found)
    assert all(vars(mesh)[name] == value for name, value in before.items())
    assert w.policy is policy
    assert "call_for_each_replica" not in vars(strategy.extended)


SERVERS = """
import warnings
import numpy as np, optax, jaxtribute as jd
if __name__ == "__main__":
    strategy = jd.ParameterServerStrategy({"ps": 1, "worker": 1})
    coordinator = jd.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        w = jd.Variable(np.ones((3, 1), np.float32), name="w")
        steps = jd.Variable(0, name="steps")
        sgd = jd.Optimizer(optax.sgd(0.1), [w])

    def replica(x):
        _, gradients = jd.value_and_grad(lambda: LOSS, [w])()
        sgd.apply_gradients(gradients)
        steps.assign_add(1)

    @jd.function
    def step(iterator):
        strategy.run(replica, (next(iterator),))

    def data():
        return strategy.experimental_make_numpy_dataset(np.eye(8, 3, dtype=np.float32)).repeat().batch(8)

    iterator = iter(coordinator.create_per_worker_dataset(data))
    for _ in range(3):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()

    @jd.function
    def own(x):
        strategy.run(replica, (x,))

    with warnings.catch_warnings(action="ignore"):  # that workers wait
        own(np.eye(8, 3, dtype=np.float32))
    assert int(steps) == 4
"""


def verified(source: str, folder: Path) -> list[str]:
    """What the command says of a script with a right loss, and of it with a wrong one; its servers are threads."""
    scripts = [folder / "right.py", folder / "wrong.py"]
    for script, loss in zip(scripts, ("((x @ w) ** 2).sum() / 8", "((x @ w) ** 2).mean()"), strict=True):
        script.write_text(source.replace("LOSS", loss))
    commands = folder / "commands.py"
    commands.write_text(COMMANDS)
    return run_python(Path(in_threads.__file__), str(commands), *map(str, scripts)).split("== next\n")


COMMANDS = """
import sys
from jaxtribute._src.addons.cli.main import main
for number, script in enumerate(sys.argv[1:]):
    print("== next" if number else "", flush=True)
    print("ended with", main(["verify", script]), flush=True)
"""


@pytest.mark.slow
def test_a_function_of_a_coordinator_is_verified(tmp_path: Path) -> None:
    # What a worker runs is seen here too, as it is a thread; in a process of its own it is not.
    right, wrong = verified(SERVERS, tmp_path)
    for name in ("step", "own"):
        assert f"{name}: as on one device" in right
        assert f"{name}: as on one device" not in wrong
    assert "which its workers of one replica each do not see" in wrong
    assert "wrong.py:13" in wrong


@pytest.mark.ray
@pytest.mark.skipif(not ALL_CASES, reason="the test above has it in threads")
@pytest.mark.parametrize(("loss", "line"), [("((x @ w) ** 2).sum() / 8", ""), ("((x @ w) ** 2).mean()", "train.py:13")])
def test_what_workers_of_one_replica_do_not_see_is_told_and_no_failure(loss: str, line: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SERVERS.replace("LOSS", loss))
    command = "import sys; from jaxtribute._src.addons.cli.main import main; sys.exit(main(['verify', sys.argv[1]]))"
    printed = run_python(command, str(script), timeout=300)
    assert ("step: as on one device" in printed) == (not line), printed
    assert line in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "devices", "compiled"),
    [
        ({}, 1, False),
        ({}, 2, True),
        ({"virtual_replicas": 4}, 2, True),
        ({"sync_every": 2}, 1, True),
        ({"sync_every": 2}, 2, False),
    ],
)
def test_steps_of_islands_are_verified(settings: dict[str, Any], devices: int, compiled: bool) -> None:
    strategy = jd.experimental.ElasticStrategy(jd.MirroredStrategy(devices), **settings)
    data = strategy.experimental_make_numpy_dataset(tuple(arrays((2 * ROWS + 1, 4), (2 * ROWS + 1, 2)))).batch(ROWS)
    # Means over islands weigh them by their rows; those over the replicas of an island that trains alone do not.
    means = ["mean-of-means"] * ("sync_every" in settings)
    kinds = (squares, "SUM", []), (mean_and_sum, "SUM", ["local-mean"]), (means_alone, "MEAN", means)
    steps = [(step_of(strategy, loss, optax.sgd(0.1), None, how), names) for loss, how, names in kinds]
    try:
        for step, names in steps:
            if not compiled:
                step = step.python_function
            watcher = Watcher(lambda _: None, None)
            with observe(watcher, *KINDS):
                for batch in strategy.experimental_distribute_dataset(data):
                    step(*batch)
            (verdict,) = watcher.verdicts
            assert [one.culprit.pattern.name for one in verdict.findings] == names, str(verdict)
            assert {one.replicas for one in verdict.tried} >= {2, 3, 4} or names, str(verdict)
            assert not verdict.unverified, str(verdict)
    finally:
        strategy.close()


@pytest.mark.parametrize("divisor", [ROWS, None])
def test_arrays_of_one_replica_that_no_dataset_has_made_are_taken_for_no_mistake(divisor: int | None) -> None:
    strategy = jd.OneDeviceStrategy("CPU:0")
    step = step_of(strategy, lambda w, v, x, y: ((x @ w @ v - y) ** 2).sum() / (divisor or x.shape[0]), optax.sgd(0.1))
    rows = arrays((ROWS, 4), (ROWS, 2))
    watcher = Watcher(lambda _: None, None)
    with observe(watcher, *KINDS):
        for x, y in strategy.experimental_distribute_dataset([rows] * 2):
            step(x / 2, y / 2)  # arrays of the program's own, with as many rows
        for held in strategy.experimental_distribute_dataset([arrays((5, 4), (5, 2))]):
            step_of(strategy, squares, optax.sgd(0.1))(*rows)
            assert held
    first, second = watcher.verdicts
    assert [one.culprit.pattern.name for one in first.findings] == ["local-mean"] * (divisor is None), str(first)
    assert first.tried, str(first)
    assert second.right, str(second)


@pytest.mark.parametrize("batch", range(2, 48))
def test_replicas_have_other_rows_also_where_the_batch_has_fewer_than_they_need(batch: int) -> None:
    # Statistics of equal rows are equal, and no mistake would be seen.
    for group in arrangements(batch):
        for one in group:
            parts = [tuple(sorted(part)) for part in one.parts(chosen_rows(batch, one.rows))]
            assert len(set(parts)) > 1, one


def test_an_operation_that_is_not_known_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotVerify, match=r"ReduceOp\.LARGEST"):
        total_of([jnp.ones(2)], another_operation(monkeypatch), None)
