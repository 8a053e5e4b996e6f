"""Steps that are not given their batch, or not its size, and those whose loss reads nothing that is trained."""

from collections.abc import Callable
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
from jaxtribute.nn import compute_average_loss
from replicas import mirrored

ROWS = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
TARGETS = ROWS @ np.array([1, 2, 3], np.float32)


def context() -> Any:
    return jd.get_replica_context()


def state(strategy: jd.Strategy, rate: float = 0.1) -> tuple[jd.Variable, jd.Optimizer]:
    with strategy.scope():
        w = jd.Variable(np.zeros(3, np.float32), name="w")
        return w, jd.Optimizer(optax.sgd(rate), [w])


# Losses without the size of the batch.


def average(w: Any, x: Any, y: Any) -> Any:
    return jd.nn.compute_average_loss((x @ w - y) ** 2)  # global_batch_size is left out


def weighed(w: Any, x: Any, y: Any) -> Any:
    return jd.nn.compute_average_loss(
        (x @ w - y) ** 2,
        jnp.abs(y),
    )


def of_elements(w: Any, x: Any, y: Any) -> Any:
    decay = jd.nn.scale_regularization_loss(jnp.sum(w.read_value() ** 2))
    return compute_average_loss(jnp.abs(x * w[None] - y[:, None])) + decay


def of_the_replicas_rows(w: Any, x: Any, y: Any) -> Any:
    count = x.shape[0] * context().num_replicas_in_sync
    return jd.nn.compute_average_loss((x @ w - y) ** 2, global_batch_size=count)


WITH_COUNT = {
    average: "jd.nn.compute_average_loss((x @ w - y) ** 2, global_batch_size=count); or",
    of_elements: "compute_average_loss(jnp.abs(x * w[None] - y[:, None]), global_batch_size=count); or",
}
"""What the advice makes of a call; of others it has the names of the guide."""


@pytest.mark.quick_cases(20, whole=True)
@pytest.mark.filterwarnings("ignore:.*without a global_batch_size:RuntimeWarning")
@pytest.mark.parametrize("rows", [8, 5, 6], ids=["even", "uneven", "one replica of four empty"])
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("loss", [average, weighed, of_elements, of_the_replicas_rows])
def test_a_loss_without_the_size_of_the_batch_is_named(loss: Callable[..., Any], replicas: int, rows: int) -> None:
    strategy = mirrored(replicas)
    w, optimizer = state(strategy)

    def replica(x: Any, y: Any) -> Any:
        value, gradients = jd.value_and_grad(lambda: loss(w, x, y), [w])()
        optimizer.apply_gradients(gradients)
        return value

    step = jd.function(lambda x, y: strategy.reduce("SUM", strategy.run(replica, (x, y)), axis=None))
    found = testing.verify(step, ROWS[:rows], TARGETS[:rows], strategy=strategy, raises=False)
    assert [one.culprit.pattern.name for one in found.findings] == ["default-batch-size"], str(found)
    assert found.right == (rows % replicas == 0), str(found)
    assert WITH_COUNT.get(loss, "(per_example_losses, global_batch_size=count); or") in str(found)


def mean(w: Any, x: Any, y: Any) -> Any:
    return jnp.sum((x @ w - y) ** 2) / max(x.shape[0], 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 8])
@pytest.mark.parametrize(("loss", "how"), [(average, "SUM"), (mean, "MEAN")])
def test_a_verdict_says_of_the_own_batch_what_one_step_of_it_shows(loss: Any, how: Any, rows: int) -> None:
    strategy = mirrored(4)
    w, optimizer = state(strategy)

    def replica(x: Any, y: Any) -> None:
        optimizer.apply_gradients(jd.grad(lambda: loss(w, x, y), [w])(), how)

    step = jd.function(lambda x, y: strategy.run(replica, (x, y)))
    x, y = ROWS[:rows], TARGETS[:rows]
    found = testing.verify(step, x, y, strategy=strategy, raises=False)
    before = w.numpy()
    for batch in strategy.experimental_distribute_dataset([(x, y)]):
        step(*batch)
    on_one_device = before - 0.1 * 2 * x.T @ (x @ before - y) / rows
    same = np.allclose(w.numpy(), on_one_device, rtol=1e-5)
    if rows == 1:  # of one row all shares are alike: only replicas that are empty show it
        assert same or not found.right, str(found)
    else:
        assert found.findings, "wrong for some batches"
        assert found.right == same, str(found)


# Steps that are given no batch.


def trained_by(loss: Callable[..., Any], *args: Any, how: Any = "SUM", replicas: int = 2) -> Any:
    """A step that takes nothing, and trains on what its loss closes over."""
    strategy = mirrored(replicas)
    w, optimizer = state(strategy)

    def replica(*args: Any) -> Any:
        value, gradients = jd.value_and_grad(lambda: loss(w, *args), [w])()
        optimizer.apply_gradients(gradients, how)
        return value

    return jd.function(lambda: strategy.reduce(how, strategy.run(replica, args), axis=None))


def part(w: Any, x: Any, y: Any) -> Any:
    return jd.nn.compute_average_loss((x @ w - y) ** 2, global_batch_size=8)


def whole(w: Any) -> Any:
    return part(w, ROWS, TARGETS)


def in_a_scan(w: Any) -> Any:
    def add(total: Any, row: Any) -> Any:
        return total + (row[0] @ w - row[1]) ** 2 / 8, None

    return jax.lax.scan(add, jnp.float32(0), (ROWS, TARGETS))[0]


def one_by_one(w: Any) -> Any:
    return sum((x @ w - y) ** 2 / 8 for x, y in zip(ROWS, TARGETS, strict=True))


def dropped(w: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(0), context().replica_id_in_sync_group)
    kept = jax.random.bernoulli(key, 0.5, ROWS.shape)
    return part(w, jnp.where(kept, ROWS, 0), TARGETS)


def masked(w: Any) -> Any:
    weights = np.arange(3, dtype=np.float32)  # of the columns, which are as many as those of nothing else
    return part(w, jnp.asarray(ROWS) * weights[None], TARGETS)


CLOSED_OVER = {whole: "x @ w", in_a_scan: "row[0] @ w", one_by_one: "x @ w", dropped: "jnp.where", masked: "* weights"}


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("loss", CLOSED_OVER)
def test_a_batch_that_is_closed_over_is_not_distributed(loss: Callable[..., Any], replicas: int) -> None:
    found = testing.verify(trained_by(loss, replicas=replicas), raises=False)
    assert [one.culprit.pattern.name for one in found.findings] == ["not-distributed"], str(found)
    assert not found.right, str(found)
    place = found.findings[0].culprit.place
    assert place is not None, str(found)
    assert place.file == __file__, str(found)
    assert CLOSED_OVER[loss] in place.text, str(found)
    assert "pass the batch as an argument" in str(found)


@pytest.mark.filterwarnings("ignore:.* each replica got a batch of 4 whole:RuntimeWarning")
@pytest.mark.parametrize("given", [True, False], ids=["arguments", "closed over"])
def test_steps_over_a_data_set_that_a_function_closes_over_are_not_distributed(given: bool) -> None:
    strategy = mirrored(2)
    w, optimizer = state(strategy)

    def replica(x: Any, y: Any) -> None:
        optimizer.apply_gradients(jd.grad(lambda: part(w, x, y), [w])())

    @jd.function
    def epoch() -> None:
        for start in (0, 4):
            rows = ROWS[start : start + 4], TARGETS[start : start + 4]
            strategy.run(replica, rows) if given else strategy.run(lambda rows=rows: replica(*rows))

    found = testing.verify(epoch, raises=False)
    assert [one.culprit.pattern.name for one in found.findings] == ["not-distributed"], str(found)
    assert not found.right, str(found)


def test_a_batch_that_is_given_and_not_distributed_is_one_also_where_the_replicas_close_over_it() -> None:
    strategy = mirrored(2)
    w, optimizer = state(strategy)

    @jd.function
    def step(x: Any, y: Any) -> None:
        strategy.run(lambda: optimizer.apply_gradients(jd.grad(lambda: part(w, x, y), [w])()))

    found = testing.verify(step, jnp.asarray(ROWS), jnp.asarray(TARGETS), raises=False)
    assert [one.culprit.pattern.name for one in found.findings] == ["not-distributed"], str(found)


def own_rows(count: int) -> Any:
    key = jax.random.fold_in(jax.random.key(0), context().replica_id_in_sync_group)
    return jax.random.normal(key, (count, 3))


def drawn(w: Any) -> Any:
    x = own_rows(4)
    return part(w, x, x.sum(1))


def taught(w: Any) -> Any:
    x = own_rows(4)
    return part(w, x, x @ np.array([1, 2, 3], np.float32))


def sliced(w: Any) -> Any:
    first = context().replica_id_in_sync_group * 4
    x, y = (jax.lax.dynamic_slice_in_dim(jnp.asarray(one), first, 4) for one in (ROWS, TARGETS))
    return part(w, x, y)


@pytest.mark.parametrize("loss", [drawn, taught, sliced])
def test_data_of_each_replica_are_neither_verified_nor_a_mistake(loss: Callable[..., Any]) -> None:
    step = trained_by(loss)
    found = testing.verify(step, raises=False)
    assert not found.findings, str(found)
    assert not found.right, str(found)
    assert str(found).splitlines()[0].endswith(": NOT VERIFIED")
    assert "depend on the number of replicas" in str(found)
    with pytest.raises(testing.NotOneDeviceError, match="no batch is given to the step"):
        testing.verify(step)


def test_a_step_without_a_batch_whose_replicas_all_agree_is_right() -> None:
    found = testing.verify(trained_by(lambda w: jnp.mean((ROWS @ w - TARGETS) ** 2), how="MEAN"))
    assert found.right
    assert found.right


def test_constants_besides_a_batch_are_no_mistake() -> None:
    strategy = mirrored(2)
    w, optimizer = state(strategy)
    positions = np.linspace(0, 1, 3, dtype=np.float32)
    weights, allowed = np.array([1, 3], np.float32), np.array([True, False, True])

    def loss(x: Any, y: Any) -> Any:
        inputs = jnp.where(allowed[None], x + positions[None], 0)
        of_classes = jnp.asarray(weights)[(y > 0).astype(jnp.int32)]
        return jd.nn.compute_average_loss((inputs @ w - y) ** 2, of_classes, 8)

    def replica(x: Any, y: Any) -> None:
        optimizer.apply_gradients(jd.grad(lambda: loss(x, y), [w])())

    step = jd.function(lambda x, y: strategy.run(replica, (x, y)))
    assert testing.verify(step, ROWS, TARGETS, strategy=strategy).right


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, optax
import jaxtribute as jd
strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    w = jd.Variable(np.ones(3, np.float32), name="w")
    optimizer = jd.Optimizer(optax.sgd(0.1), [w])
held = np.eye(3, dtype=np.float32)
def loss():
    rows = {rows}
    return jd.nn.compute_average_loss((rows @ w.read_value() - 1) ** 2, global_batch_size=3)
def replica():
    optimizer.apply_gradients(jd.grad(loss, [w])())
step = jd.function(lambda: strategy.run(replica))
step()
"""
KEY = "jax.random.fold_in(jax.random.key(0), jd.get_replica_context().replica_id_in_sync_group)"


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize(
    ("rows", "status", "said"),
    [("held", 1, "not-distributed"), (f"jax.random.normal({KEY}, (3, 3))", 2, "NOT VERIFIED")],
    ids=["held", "drawn"],
)
def test_the_command_tells_of_a_step_without_a_batch(
    rows: str, status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jax.devices()  # the command makes devices only where JAX has not begun
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(rows=rows), encoding="utf-8")
    assert main(["verify", str(script)]) == status
    assert said in capsys.readouterr().out


# Losses that read nothing that is trained.

READS_NONE = "the loss reads none of the variables that it is differentiated by"
NO_CHANGE = "no step changes what is trained, or by rounding alone (a learning rate of 0, "


def verdict_on_losses(loss: Callable[..., Any], transform: Any, how: str) -> testing.Verdict:
    """What comes of a step; `loss` is given the parameters as they are read now, and as they were before."""
    strategy = mirrored(2)
    with strategy.scope():
        model = jd.Model({"w": jnp.ones(3), "layers": jnp.ones((2, 3))}, transform)
        w = jd.Variable(jnp.ones(3))
        optimizer = jd.Optimizer(transform, [w])
    before = model.value

    def of_rows(x: Any, y: Any) -> Any:
        return loss(model, before, x, y)

    def apart(x: Any, y: Any) -> None:
        if how == "grad":
            gradients = jd.grad(of_rows, [w])(x, y)
        else:
            _, gradients = jd.value_and_grad(of_rows, [w])(x, y)
        optimizer.apply_gradients(gradients)

    @jd.function
    def step(x: Any, y: Any) -> None:
        if how == "minimize":
            strategy.run(model.minimize, (of_rows, x, y))
        else:
            strategy.run(apart, (x, y))

    return testing.verify(step, ROWS, TARGETS, strategy=strategy, raises=False)


def stale(model: Any, before: Any, x: Any, y: Any) -> Any:
    return part(before["w"], x, y)


def stopped(model: Any, before: Any, x: Any, y: Any) -> Any:
    return part(jax.lax.stop_gradient(model.value["w"]), x, y)


def in_layers(model: Any, before: Any, x: Any, y: Any) -> Any:
    return jax.lax.scan(lambda total, w: (total + part(w, x, y), None), jnp.float32(0), model.value["layers"])[0]


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.filterwarnings("ignore:.*reads none of its variables")  # the library's own, while it traces
@pytest.mark.parametrize("how", ["minimize", "value_and_grad", "grad"])
def test_a_loss_that_reads_nothing_that_is_trained_is_named_with_its_line(how: str) -> None:
    found = verdict_on_losses(stale, optax.adamw(0.1, weight_decay=0.0), how)
    assert READS_NONE in str(found)
    assert NO_CHANGE not in str(found)
    assert not found.right
    assert found.unread is not None
    assert found.unread.file == __file__
    assert {"minimize": "model.minimize", "grad": "apply_gradients", "value_and_grad": "jd.value_and_grad"}[
        how
    ] in found.unread.whole, str(found)


@pytest.mark.parametrize(
    ("loss", "transform"),
    [(stopped, optax.sgd(0.1)), (in_layers, optax.sgd(0.0)), (in_layers, optax.set_to_zero())],
    ids=["stopped", "no rate", "frozen"],
)
def test_what_else_leaves_all_as_it_is_is_not_taken_for_that(loss: Callable[..., Any], transform: Any) -> None:
    found = verdict_on_losses(loss, transform, "minimize")
    assert NO_CHANGE in str(found)
    assert READS_NONE not in str(found)
