"""What is found out about steps."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.planning.inspection import Looker, Step, look_at_script
from jaxtribute._src.addons.planning.report import cost_text
from jaxtribute._src.addons.tools.user_scripts import STEPS_AND_INPUT
from jaxtribute.experimental import observe
from jaxtribute.planning import StepCost, cost_of
from planning.scripts import VARIABLES, write


def squares(x: Any) -> Any:
    return (x**2).sum()


def training(
    strategy: jd.Strategy, *, dtype: Any = np.float32, rows: int | None = None, width: int = 32, loss: Any = squares
) -> Any:
    """A step of one matrix product forward and two back for each example."""
    with strategy.scope():
        w = jd.Variable(np.zeros((16, width), dtype), name="w")
        optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [w])

    def update(x: jax.Array) -> Any:
        if rows is not None:
            x = x.reshape(rows, 16)  # a step for one size of the batch

        _, gradients = jd.value_and_grad(lambda: loss(x @ w), [w])()
        optimizer.apply_gradients(gradients)

    @jd.function
    def step(batch: Any) -> None:
        strategy.run(update, (batch,))

    return step


def batch_of(strategy: jd.Strategy, rows: int, dtype: Any = np.float32) -> Any:
    return next(iter(strategy.experimental_distribute_dataset([np.ones((rows, 16), dtype)])))


@pytest.fixture(scope="module")
def mirrored() -> StepCost:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    return cost_of(training(strategy), batch_of(strategy, 64))


def test_operations_grow_with_the_examples(mirrored: StepCost) -> None:
    assert mirrored.exact
    # Forward and for the weights: 2 operations for each of 16 x 32 weights, twice; more for the loss.
    assert 2 * 2 * 16 * 32 <= mirrored.flops.each <= 3 * 2 * 16 * 32
    assert mirrored.flops.fixed < 10 * 16 * 32, "the update does not depend on the batch"


def test_memory_holds_the_variables_once(mirrored: StepCost) -> None:
    assert VARIABLES <= mirrored.memory.fixed < 2.6 * VARIABLES
    assert mirrored.memory.each >= 16 * 4


def test_memory_of_a_larger_batch_is_that_of_the_compiled_step() -> None:
    """With few examples the gradient's scratch hides the activations."""
    strategy, x = jd.MirroredStrategy(["CPU:0", "CPU:1"]), np.ones((8, 64), np.float32)
    with strategy.scope():
        model = jd.Model([np.ones((64, 1024), np.float32), np.ones((1024, 8), np.float32)], optax.adam(0.1))

    def loss(x: jax.Array) -> jax.Array:
        first, second = model.value
        return jd.nn.compute_average_loss(((jnp.tanh(x @ first) @ second) ** 2).mean(-1), global_batch_size=8)

    step = jd.function(lambda batch: strategy.run(model.minimize, (loss, batch)))
    looker = Looker(lambda found: [found.cost("step", most) for most in (0, 16, 65_536)], stop=False)
    with observe(looker, "dispatch"):
        step(next(iter(strategy.experimental_distribute_dataset([x]))))
    least, few, large = looker.found
    assert [one.known_rows for one in (least, few, large)] == [8, 16, 65_536]

    def alone(parameters: Any, rows: Any) -> Any:
        return jax.grad(lambda p: ((jnp.tanh(rows @ p[0]) @ p[1]) ** 2).mean())(parameters)

    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((64, 1024), (1024, 8), (65_536, 64))]
    plain: Any = jax.jit(alone).lower(shapes[:2], shapes[2]).compile().memory_analysis()
    expected = plain.temp_size_in_bytes + plain.argument_size_in_bytes
    assert large.memory_on(1, 65_536) == pytest.approx(expected, rel=0.1)
    assert large.memory_on(1, 4) == least.memory_on(1, 4)
    assert few.memory_on(1, 65_536) < 0.9 * expected, "a guess, which is said"


def test_the_gradient_is_exchanged_with_the_loss(mirrored: StepCost) -> None:
    assert [one.kind for one in mirrored.collectives] == ["all-reduce"]
    assert mirrored.parameters == 16 * 32 * 4
    assert mirrored.collectives[0].nbytes == mirrored.parameters + 4


def test_names_and_sizes(mirrored: StepCost) -> None:
    assert (mirrored.name, mirrored.batch, mirrored.replicas, mirrored.half) == ("step", 64, 2, False)


def test_one_replica_exchanges_nothing_yet() -> None:
    strategy = jd.OneDeviceStrategy("CPU:0")
    cost = cost_of(training(strategy, dtype=jnp.bfloat16), batch_of(strategy, 8, jnp.bfloat16))
    assert (cost.batch, cost.replicas, cost.collectives) == (8, 1, ())
    assert cost.exchanged()[0].nbytes == cost.parameters == 16 * 32 * 2
    assert cost.half
    text = " ".join(cost_text(cost).split())
    assert "on 1 replica(s)" in text
    assert "exchanges nothing with other replicas. More replicas are planned under MirroredStrategy, where" in text
    assert "all-reduce 1.0 KB of gradients in a step; their memory is rather told too large. HINT" in text


@pytest.mark.parametrize("adaptive", [False, True])
def test_memory_on_more_replicas_than_one_is_never_told_too_low(adaptive: bool) -> None:
    """Whichever number of replicas was looked at: the others exchange what one need not hold."""

    def cost(strategy: jd.Strategy) -> StepCost:
        with strategy.scope():
            ws = [jd.Variable(np.full((256, 256), 0.01, np.float32)) for _ in range(4)]
            optimizer = jd.Optimizer(optax.adam(0.1) if adaptive else optax.sgd(0.1), ws)

        def update(x: jax.Array) -> None:
            def loss() -> jax.Array:
                hidden = x
                for w in ws:
                    hidden = jnp.tanh(hidden @ w)
                return jnp.sum(hidden**2)

            _, gradients = jd.value_and_grad(loss, ws)()
            optimizer.apply_gradients(gradients)

        step = jd.function(lambda batch: strategy.run(update, (batch,)))
        return cost_of(step, next(iter(strategy.experimental_distribute_dataset([np.ones((16, 256), np.float32)]))))

    seen = [cost(strategy) for strategy in (jd.OneDeviceStrategy("CPU:0"), jd.MirroredStrategy(2))]
    for count in (2, 4, 8):
        real = cost(jd.MirroredStrategy(count)).memory.at(16 / count)
        for one in seen:
            assert real * 0.99 <= one.memory_on(count, 16 / count) <= real * 1.5


def test_slots_that_many_replicas_share_out_are_counted_so_where_the_model_is_planned_alone() -> None:
    width = 1 << 15
    alone, shared = (
        cost_of(training(strategy, width=width), batch_of(strategy, 8))
        for strategy in (jd.MirroredStrategy(1), jd.MirroredStrategy(8))
    )
    momentum = 16 * width * 4
    exchange = 2 * alone.parameters  # all gradients and their sums, which one replica need not hold at once
    assert alone.memory.at(1) + exchange - alone.memory_on(8, 1) == momentum * 7 / 8
    assert alone.memory_on(2, 1) == alone.memory.at(1) + exchange
    assert shared.memory_on(8, 1) == shared.memory.at(1)
    assert shared.memory_on(1, 1) - shared.memory.at(1) == momentum * 7 / 8


def test_slices_are_shared_out_among_more_devices() -> None:
    few, many = (
        cost_of(training(strategy, width=1 << 15), batch_of(strategy, 8))
        for strategy in (jd.FullyShardedStrategy(["CPU:0", "CPU:1"]), jd.FullyShardedStrategy())
    )
    state = 2 * 16 * (1 << 15) * 4  # the weights and their momentum
    assert few.memory_on(2, 4) == few.memory.at(4)
    assert few.memory.at(4) - few.memory_on(8, 4) == state * (1 / 2 - 1 / 8)
    assert many.memory_on(8, 1) == many.memory.at(1)


def gathered(x: Any) -> Any:
    context: Any = jd.get_replica_context()
    return context.all_gather(x, axis=0)


def by_count(x: Any) -> Any:
    context: Any = jd.get_replica_context()
    return (x**2).sum() / context.all_reduce("SUM", np.float32(x.shape[0]))


def centered(x: Any) -> Any:
    context: Any = jd.get_replica_context()
    return x - context.all_reduce("MEAN", x.mean(0, keepdims=True))


MIXING: dict[str, Any] = {
    "rows beside all rows": lambda x: jax.nn.logsumexp(x @ gathered(x).T, axis=1).sum(),
    "a kernel of all rows": lambda x: jnp.linalg.slogdet(gathered(x) @ gathered(x).T + jnp.eye(len(gathered(x))))[1],
    "rows of the next": lambda x: (x * jax.lax.ppermute(x, jd.REPLICA_AXIS, [(0, 1), (1, 0)])).sum(),
}
PLAIN: dict[str, Any] = {
    "a sum": lambda x: (x**2).sum(),
    "a mean": by_count,
    "statistics": lambda x: (centered(x) ** 2).sum(),
}


@pytest.mark.parametrize("name", [*MIXING, *PLAIN])
@pytest.mark.parametrize("kind", [jd.MirroredStrategy, jd.FullyShardedStrategy])
def test_work_that_grows_with_the_batch_is_told_from_work_for_each_example(kind: Any, name: str) -> None:
    strategy = kind(["CPU:0", "CPU:1"], **({"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}))
    cost = cost_of(training(strategy, loss=(MIXING | PLAIN)[name]), batch_of(strategy, 64))
    assert cost.mixes == (name in MIXING)


@pytest.mark.parametrize(("loss", "mixes"), [(lambda x: (x @ x.T).sum(), True), (lambda x: (x**2).sum(), False)])
def test_work_of_one_replica_that_bends_is_told_by_a_larger_batch(loss: Any, mixes: bool) -> None:
    def look(step: Step) -> StepCost:
        return step.cost("step", 1024)

    strategy = jd.OneDeviceStrategy("CPU:0")
    looker = Looker(look, stop=False)
    with observe(looker, *STEPS_AND_INPUT):
        training(strategy, loss=loss)(batch_of(strategy, 16))
    assert looker.found.mixes == mixes


@pytest.mark.parametrize("replicas", [1, 2])
def test_devices_of_a_replica_are_told_from_replicas(replicas: int, tmp_path: Path) -> None:
    layout = jd.LayoutMap({"w": (None, "model")})
    strategy = jd.MirroredStrategy(2 * replicas, devices_per_replica=2, layout=layout)
    with strategy.scope():
        w = jd.Variable(jnp.ones((16, 32)), name="w", aggregation="MEAN")

    @jd.function
    def step(batch: Any) -> None:
        def update(x: Any) -> None:
            # The sum over columns, which lie on two devices, is one within the replica.
            w.assign_sub(jd.grad(lambda: jnp.sum(jnp.tanh(jnp.sum(jnp.tanh(x @ w), axis=-1))), [w])()[0])

        strategy.run(update, (batch,))

    cost_of(step, batch_of(strategy, 8)).save(tmp_path / "step.json")
    cost = StepCost.load(tmp_path / "step.json")
    assert (cost.replicas, cost.per_replica, cost.parameters) == (replicas, 2, 16 * 32 * 4 // 2)
    assert [one.nbytes for one in cost.within] == [8 // replicas * 4], "a sum for each example"
    assert [one.nbytes for one in cost.exchanged()] == [cost.parameters]
    assert f"on {replicas} replica(s) of 2 devices. Each device computes" in cost_text(cost)
    assert ("exchanges nothing with other replicas" in cost_text(cost)) is (replicas == 1)
    assert "Within its replica it exchanges" in cost_text(cost)


def test_examples_that_come_from_no_dataset() -> None:
    strategy = jd.get_strategy()
    for batch in (jnp.ones((12, 16)), np.ones((12, 16), np.float32)):
        cost = cost_of(training(strategy), batch)
        assert cost.batch == 12
        assert cost.exact


def test_a_step_for_one_size_of_the_batch() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    cost = cost_of(training(strategy, rows=4), batch_of(strategy, 8))
    assert not cost.exact
    assert cost.flops.fixed == cost.memory.fixed == 0
    assert cost.flops.at(4) >= 4 * 2 * 2 * 16 * 32


def test_planning_leaves_the_variables_as_a_step_does() -> None:
    counter = jd.Variable(1.0)

    @jd.function
    def step() -> None:
        counter.assign_add(1.0)

    cost = cost_of(step)
    assert float(counter.read_value()) == 2
    assert (cost.batch, cost.replicas) == (1, 1)


def test_state_in_arguments_costs_what_it_does_in_variables() -> None:
    x, w = np.ones((8, 16), np.float32), jd.Variable(jnp.ones((16, 4)))

    @jd.function(donate_argnums=1)
    def functional(x: jax.Array, w: jax.Array) -> jax.Array:
        return w - x.T @ (x @ w)

    @jd.function
    def step(x: jax.Array) -> None:
        w.assign_sub(x.T @ (x @ w.read_value()))

    found, wanted = cost_of(functional, x, jnp.ones((16, 4))), cost_of(step, x)
    assert (found.batch, found.flops, found.memory) == (8, wanted.flops, wanted.memory)


def test_what_cannot_be_planned() -> None:
    with pytest.raises(jd.errors.ArgumentError, match=r"<lambda> ran no compiled program.*HINT: decorate it"):
        cost_of(lambda: None)

    central = jd.CentralStorageStrategy(["CPU:1", "CPU:2"], parameter_device="CPU:0")
    with pytest.raises(
        jd.errors.ArgumentError, match=r"several programs \(CentralProgram\).*HINT: plan it under MirroredStrategy"
    ):
        cost_of(training(central), batch_of(central, 8))


def test_the_table_of_an_automatic_layout(tmp_path: Path) -> None:
    layout = jd.experimental.AutomaticLayout(tries=1)
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"], devices_per_replica=2, layout=layout)
    cost_of(training(strategy), batch_of(strategy, 4)).save(tmp_path / "step.json")
    text = cost_text(StepCost.load(tmp_path / "step.json"))
    assert "The automatic layout on the devices of each replica:\nvariable  shape    layout" in text
    assert "\nw         16 x 32  " in text
    assert "layout" not in cost_text(cost_of(training(jd.MirroredStrategy(["CPU:0"])), np.ones((4, 16), np.float32)))


def test_the_first_step_of_a_script(tmp_path: Path) -> None:
    batch = look_at_script(write(tmp_path), [], lambda step: (step.batch, step.replicas))
    assert batch == (24, len(jax.devices()))


def test_what_each_device_does_in_a_step(tmp_path: Path) -> None:
    wanted = look_at_script(write(tmp_path), [], lambda step: step.wanted())
    made = [([shape.shape for shape in one.shapes], one.times) for one in wanted.products]
    assert made[0] == ([(3, 16), (16, 32)], 1), "three examples on each of eight devices"
    assert len(made) == 2, "and one for the gradient; what nothing uses is not computed"
    assert wanted.arrays >= 3, "weights, momentum, examples"
    assert 16 * 32 * 4 <= max(wanted.passes) < 16 * VARIABLES
    assert {one.kind for one in wanted.collectives} == {"all-reduce"}


def test_a_script_without_a_step(tmp_path: Path) -> None:
    with pytest.raises(jd.errors.ArgumentError, match=r"ended without a step. HINT"):
        look_at_script(write(tmp_path), ["0"], lambda step: step)
