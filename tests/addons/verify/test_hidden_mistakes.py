"""Mistakes that the first call of a step does not show are found all the same, and right programs raise no alarm."""

import functools
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

ROWS = 12
X = np.random.default_rng(0).normal(size=(5 * ROWS, 3)).astype("float32")
Y = X @ np.array([1, 2, 3], np.float32)
WARM = optax.warmup_cosine_decay_schedule(0, 0.02, 5, 60)


def step_of(strategy: jd.Strategy, transform: Any, mean: Any, *, sums: bool = True) -> tuple[Any, Any]:
    """A step that takes its state and returns it; `mean` makes the loss of the rows' errors and the number of calls."""

    def replica(state: Any, x: Any, y: Any) -> Any:
        params, slots, calls = state
        gradients = jax.grad(lambda params: mean((x @ params["w"] - y) ** 2, calls))(params)
        if sums:
            context = jd.get_replica_context()
            assert context is not None
            gradients = context.all_reduce("SUM", gradients)
        updates, slots = transform.update(gradients, slots, params)
        return optax.apply_updates(params, updates), slots, calls + 1

    @jd.function
    def step(state: Any, x: Any, y: Any) -> Any:
        return strategy.run(replica, (state, x, y))

    params = {"w": jnp.zeros(3)}
    return step, strategy.place((params, transform.init(params), jnp.int32(0)))


def average(errors: Any, calls: Any) -> Any:
    del calls
    return jd.nn.compute_average_loss(errors, global_batch_size=ROWS)


def local(errors: Any, calls: Any) -> Any:
    del calls
    return errors.mean()


def switched(errors: Any, calls: Any) -> Any:
    return jax.lax.cond(calls > 1000, errors.mean, lambda: average(errors, 0))


def chosen(errors: Any, calls: Any) -> Any:
    return jnp.where(calls > 1000, errors.mean(), average(errors, 0))


def faded(errors: Any, calls: Any) -> Any:
    share = jnp.clip(calls - 3, 0, 100) / 100
    return share * errors.mean() + (1 - share) * average(errors, 0)


GATED = optax.scale_by_schedule(lambda count: jnp.where(jnp.asarray(count) < 3, 0.0, -0.1))


@pytest.mark.parametrize(
    ("transform", "mean", "right"),
    [
        (optax.MultiSteps(optax.sgd(WARM), 3), average, True),
        (optax.sgd(0.1), average, True),
        (optax.MultiSteps(optax.sgd(WARM), 3), local, False),
        (GATED, local, False),
        (optax.sgd(0.1), switched, False),
        (optax.sgd(0.1), chosen, False),
    ],
    ids="right right_plain accumulation gate cond where".split(),
)
@pytest.mark.slow
def test_what_the_first_call_hides_is_verified(transform: Any, mean: Any, right: bool) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    step, state = step_of(strategy, transform, mean)
    batch = map(functools.partial(_spread, strategy), (X[:ROWS], Y[:ROWS]))
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        found = testing.verify(step, state, *batch, raises=False)
    assert [one.culprit.pattern.name for one in found.findings] == [] if right else ["local-mean"], str(found)
    assert found.right == right, str(found)
    assert found.tried, str(found)
    assert not found.untaken + found.pending, str(found)


def _spread(strategy: jd.Strategy, value: Any) -> Any:
    return next(iter(strategy.experimental_distribute_dataset([value])))


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, optax, sys
import jaxtribute as jd
sys.path.insert(0, "TESTS")
from test_hidden_mistakes import ROWS, X, Y, average, faded, local, step_of
strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
step, state = step_of(strategy, optax.sgd(0.01), HOW)
batches = [(X[i:i + ROWS], Y[i:i + ROWS]) for i in range(0, len(X), ROWS)]
for batch in strategy.experimental_distribute_dataset(2 * batches):
    state = step(state, *batch)
"""
PLAIN = """
import jaxtribute as jd, numpy as np
strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    w = jd.Variable(np.ones((3, 1), np.float32))
def replica(x):
    LINE
@jd.function
def step(x):
    return strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None)
step(BATCH)
END
"""
WHOLE = "np.ones((12, 3), np.float32)"
BATCH = "next(iter(strategy.experimental_distribute_dataset([np.ones((12, 3), np.float32)])))"


@pytest.mark.parametrize(
    ("program", "status", "told"),
    [
        (PROGRAM.replace("HOW", "average"), 0, "step: as on one device, 2 variables"),
        # The state leaves the replicas' ways, which the next call shows.
        (PROGRAM.replace("HOW", "average, sums=False"), 1, "not-reduced"),
        (PROGRAM.replace("HOW", "faded"), 1, "step, call 8: 1 difference(s) from one device\n\n1. local-mean"),
        (
            PLAIN.replace("LINE", "return (x @ w).sum() / 12").replace("BATCH", "np.ones((12, 3), np.float32)"),
            1,
            "1. not-",
        ),
        (PLAIN.replace("LINE", "return jnp.sum(x + x.shape[0])").replace("BATCH", BATCH), 1, "1. rows-of-replica"),
        (PLAIN.replace("LINE", "return (x @ w).sum()").replace("BATCH", BATCH).replace("END", "step.no"), 2, "FAILED"),
    ],
    ids="right forgotten later whole rows fails".split(),
)
@pytest.mark.slow
def test_the_command_tells(
    program: str, status: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jax.devices()  # the command makes devices, and settings of their threads, only where JAX has not begun
    script = tmp_path / "train.py"
    text = "import jax.numpy as jnp\n" + program.replace("TESTS", str(Path(__file__).parent)).replace("END", "")
    script.write_text(text)
    found = main(["verify", str(script)]), "".join(capsys.readouterr())
    assert found[0] == status, found[1]
    assert told in found[1], found[1]
    if status == 2:
        assert f'"{script}", line' in found[1], found[1]
        assert "AttributeError" in found[1], found[1]


@pytest.mark.parametrize("counted", [1e2, 1e7])
@pytest.mark.parametrize("held", ["variables", "state"])
def test_the_size_of_a_counter_hides_nothing(held: str, counted: float) -> None:
    strategy, transform = jd.MirroredStrategy(3), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01))
    with strategy.scope():
        w = jd.Variable(jnp.zeros(3))
        seen = jd.Variable(0.0, trainable=False, aggregation=jd.VariableAggregation.ONLY_FIRST_REPLICA)
        optimizer = jd.Optimizer(transform, [w])

    def gradient(w: Any, x: Any, y: Any) -> Any:
        found = jax.grad(lambda w: average((x @ w - y) ** 2, 0))(w)
        context = jd.get_replica_context()
        assert context is not None
        return context.all_reduce("SUM", found / strategy.num_replicas_in_sync)

    def of_variables(x: Any, y: Any) -> None:
        optimizer.apply_gradients([gradient(w.read_value(), x, y)], reduce_op=None)
        seen.assign_add(counted)

    def of_state(x: Any, y: Any, state: Any) -> Any:
        w, slots, seen = state
        updates, slots = transform.update(gradient(w, x, y), slots)
        return w + updates, slots, seen + counted

    step = jd.function(lambda *args: strategy.run(of_variables if held == "variables" else of_state, args))
    arguments: list[Any] = [_spread(strategy, X[:ROWS]), _spread(strategy, Y[:ROWS])]
    if held == "state":
        first = jnp.zeros(3)
        arguments.append(strategy.place((first, transform.init(first), jnp.float32(0))))
    with jax.numpy_dtype_promotion("standard"):
        found = testing.verify(step, *arguments, raises=False)
    assert "found / strategy.num_replicas_in_sync" in str(found)


@pytest.mark.slow
def test_a_function_of_tensorflows_that_has_not_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program ends before its evaluation has begun; what ran over a dataset, as Python, has run."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import jaxtribute.compat.tf as tf, numpy as np
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    w = tf.Variable(np.zeros(2, np.float32), aggregation=tf.VariableAggregation.SUM)

@tf.function
def step(x):
    strategy.run(lambda x: w.assign_add(tf.reduce_sum(x, axis=0)), args=(x,))

@tf.function
def epoch(dataset):
    for x in dataset:
        strategy.run(lambda x: w.assign_add(tf.reduce_sum(x, axis=0)), args=(x,))

@tf.function
def evaluate(x):
    return strategy.reduce("SUM", strategy.run(lambda x: x.mean(), args=(x,)), axis=None)

rows = tf.data.Dataset.from_tensor_slices(np.ones((24, 2), np.float32)).batch(12)
dataset = strategy.experimental_distribute_dataset(rows)
epoch(dataset)
while True:
    for x in dataset:
        step(x)
"""
    )
    jax.devices()
    status = main(["verify", str(script)])
    told = capsys.readouterr().out
    assert status == 3, told
    assert "train.py:16) have not run" in told
    assert "epoch (" not in told.partition("ended there")[2]
