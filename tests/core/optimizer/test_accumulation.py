"""Gradients accumulated over several calls: one synchronisation a cycle, and the update of one large batch."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.core.execution.program import Program
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from replicas import mirrored, one_device, variable

TWO = ["CPU:0", "CPU:1"]
STRATEGIES = {
    "one device": one_device(0),
    "mirrored": mirrored(2),
    "three": mirrored(3),
    "sharded": jd.FullyShardedStrategy(TWO, min_bytes=24),
    "all sharded": jd.FullyShardedStrategy(TWO, min_bytes=0),
    "central": jd.CentralStorageStrategy(TWO, "CPU:2"),
}
DATA = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
ADAM = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))


class Model:
    """A step over two variables, and their optimizer."""

    def __init__(
        self, strategy: jd.Strategy, batch: int, op: str | None = "SUM", transform: Any = ADAM, **options: Any
    ) -> None:
        self.strategy, self.batch, self.op = strategy, batch, op
        with strategy.scope():
            self.w = jd.Variable(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), name="w")
            self.b = jd.Variable(np.zeros(3, np.float32), name="b")
            self.optimizer = jd.Optimizer(transform, [self.w, self.b], **options)
        self.step = jd.function(self.eager)

    def eager(self, x: Any) -> None:
        self.strategy.run(self.replica_step, (x,))

    def replica_step(self, x: Any) -> None:
        def loss() -> Any:
            values = (jnp.tanh(x @ self.w + self.b.read_value()[None]) ** 2).sum(-1)
            if self.op == "MEAN":
                return values.mean()
            return jd.nn.compute_average_loss(values, global_batch_size=self.batch)

        grads = jd.grad(loss, [self.w, self.b])()
        if self.op is None:
            grads = jd.get_replica_context().all_reduce("SUM", grads)  # pyright: ignore[reportOptionalMemberAccess]
        self.optimizer.apply_gradients(grads, self.op)

    def train(self, sizes: list[int], *, eager: bool = False) -> list[Any]:
        """The variables after each call, on batches of these sizes."""
        cuts = np.cumsum([0, *sizes])
        batches = [DATA[a:b] for a, b in pairwise(cuts)]
        seen: list[Any] = []
        for x in self.strategy.experimental_distribute_dataset(batches):
            (self.eager if eager else self.step)(x)
            seen.append([self.w.numpy(), self.b.numpy()])
        return seen


def close(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.fixture(scope="module")
def large() -> list[Any]:
    """What two updates by one large batch each make of the variables."""
    return Model(one_device(0), 12).train([12, 12])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_cycle_does_what_one_large_batch_does(name: str, large: list[Any]) -> None:
    model = Model(STRATEGIES[name], 6, accumulate_steps=2)
    start = [model.w.numpy(), model.b.numpy()]
    seen = model.train([6, 6, 6, 6])
    close(seen[0], start)
    close(seen[1], large[0])
    close(seen[2], large[0])
    close(seen[3], large[1])
    assert "2 calls an update" in repr(model.optimizer)
    assert model.step.experimental_get_tracing_count() == 1
    *_, count = model.optimizer.variables
    assert int(count) == 0
    assert all(not np.any(v.numpy()) for v in model.optimizer.variables if "accumulated" in v.name)


# Three examples on two replicas: 2 and 1. One on two: the last replica has none. In sums they count as in one batch.
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["mirrored", "sharded", "central", "all sharded"])
def test_uneven_batches(name: str, large: list[Any]) -> None:
    # Without a norm over all gradients the end of a cycle meets nobody, if the gradients lie in slices.
    transform = optax.adam(1e-2) if name == "all sharded" else ADAM
    if name == "all sharded":
        large = Model(one_device(0), 12, transform=transform).train([12])
    model = Model(STRATEGIES[name], 12, transform=transform, accumulate_steps=2, accumulate_op="SUM")
    close(model.train([11, 1])[-1], large[0])
    compiled = model.step._signatures.programs.values()  # pyright: ignore[reportPrivateUsage]
    assert all(isinstance(one, Program) for one in compiled)  # in lockstep, a last batch would be slow


@pytest.mark.slow
def test_eagerly() -> None:
    sgd = optax.sgd(0.1)
    model = Model(STRATEGIES["central"], 12, "SUM", sgd, accumulate_steps=2, accumulate_op="SUM")
    close(model.train([11, 1], eager=True)[-1], Model(one_device(0), 12, "SUM", sgd).train([12])[-1])


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("op", ["MEAN", None])
def test_means_and_gradients_that_are_reduced_already(op: str | None, large: list[Any]) -> None:
    model = Model(mirrored(3), 6, op, accumulate_steps=2)
    close(model.train([6, 6])[-1], large[0])


@pytest.mark.slow
def test_a_mean_leaves_replicas_without_data_out() -> None:
    sgd = optax.sgd(0.1)
    found = Model(mirrored(2), 1, "MEAN", sgd, accumulate_steps=2).train([1, 1])
    eager = Model(mirrored(2), 1, "MEAN", sgd, accumulate_steps=2).train([1, 1], eager=True)
    close(found[-1], eager[-1])
    close(found[-1], Model(one_device(0), 2, "SUM", sgd).train([2])[-1])


def test_slices_of_large_variables_are_updated_alone(large: list[Any]) -> None:
    model = Model(mirrored(2), 6, accumulate_steps=2, shard_update=True)
    assert "2 variables sharded" in repr(model.optimizer)
    close(model.train([6, 6])[-1], large[0])


def test_only_the_last_call_of_a_cycle_makes_collectives() -> None:
    model = Model(mirrored(2), 6, accumulate_steps=3)
    model.train([6])
    program = next(iter(model.step._signatures.programs.values()))  # pyright: ignore[reportPrivateUsage]
    batch = next(iter(model.strategy.experimental_distribute_dataset([DATA[:6]])))
    text = program.lower([batch.data]).as_text()  # pyright: ignore[reportFunctionMemberAccess]
    before, inside = text.split('"stablehlo.case"', 1)
    assert "all_reduce" in inside
    assert "all_reduce" not in before


@pytest.mark.slow
def test_across_replicas_and_in_a_merge_call() -> None:
    results: list[Any] = []
    for name in ("mirrored", "sharded", "central"):
        model = Model(STRATEGIES[name], 6, accumulate_steps=3, accumulate_op="SUM", transform=optax.sgd(0.1))
        grads = [np.full((4, 3), 0.01, np.float32), np.full(3, 0.02, np.float32)]
        model.optimizer.apply_gradients(grads)
        jd.function(lambda o=model.optimizer, g=grads: o.apply_gradients(g))()

        def merged(_: jd.Strategy, *grads: Any, model: Model = model) -> None:
            model.optimizer.apply_gradients(list(grads))

        def fn(merged: Any = merged, grads: Any = grads, model: Model = model) -> None:
            part = [jnp.asarray(g) / model.strategy.num_replicas_in_sync for g in grads]
            jd.get_replica_context().merge_call(merged, part)  # pyright: ignore[reportOptionalMemberAccess]

        jd.function(lambda s=model.strategy, fn=fn: s.run(fn))()
        results.append([model.w.numpy(), model.b.numpy()])
    for found in results[1:]:
        close(found, results[0])
    assert np.any(results[0][1])


def test_sums_of_half_precision_are_kept_in_full() -> None:
    v = variable(mirrored(2), jnp.zeros(4, jnp.bfloat16))
    optimizer = jd.Optimizer(optax.sgd(1.0), [v], accumulate_steps=2)
    assert optimizer.variables[0].dtype == jnp.float32
    step = jd.function(lambda: mirrored(2).run(lambda: optimizer.apply_gradients([jnp.ones(4, jnp.bfloat16)])))
    step()
    step()
    assert v.numpy().tolist() == [-2] * 4


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, None])
def test_bad_numbers_of_steps(steps: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"accumulate_steps is .*HINT: pass a whole number"):
        jd.Optimizer(ADAM, [variable(mirrored(2), 1.0)], accumulate_steps=steps)
    with pytest.raises(ArgumentError, match="accumulate_op is 'most'"):
        jd.Optimizer(ADAM, [variable(mirrored(2), 1.0)], accumulate_op="most")  # pyright: ignore[reportArgumentType]
