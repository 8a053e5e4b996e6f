"""Where a budget of memory is asked for, what is never computed again, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.experimental import Event, Observer, observe
from jaxtribute.extending import Literal

ROWS, WIDTH = 512, 16


class Choices(Observer):
    """Keeps what was chosen."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def on_end(self, event: Event) -> None:
        """Keeps it."""
        self.made.append(event.result)


def _weights(count: int) -> tuple[list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    weights = [random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(count)]
    return weights, random.normal(size=(ROWS, WIDTH)).astype(np.float32)


def _layer(h: Any, w: Any) -> Any:
    return jnp.tanh(jnp.exp(jnp.sin(h @ w)))


@pytest.mark.parametrize("cpu", [True, False])
@pytest.mark.parametrize(
    ("function", "slow"), [(jax.lax.rsqrt, False), (jax.nn.gelu, True), (lambda h: jnp.tanh(jnp.exp(jnp.sin(h))), True)]
)
def test_what_a_compiler_computes_in_its_users_takes_no_memory(function: Any, slow: bool, cpu: bool) -> None:
    from jaxtribute._src.addons.memory.chains import Chain
    from jaxtribute._src.addons.memory.choosing import Search

    weights, x = _weights(4)

    def loss(weights: Any) -> Any:
        h = jnp.asarray(x)
        for w in weights:
            h = h + function(h @ w)
        return jnp.sum(h)

    chain = Chain(jax.make_jaxpr(loss)(weights), [True] * 4, gathers=False, cpu=cpu)
    # The products, and the sums that the next ones start from. Compilers for CPUs repeat no operation of many
    # instructions, so that what these give is in memory, too.
    least = (4 + 3) * ROWS * WIDTH * 4
    peak = Search(chain).everything().peak
    assert peak >= least + 4 * ROWS * WIDTH * 4 if slow and cpu else peak == least


def test_it_is_bit_equal_to_the_users_own_checkpoint_of_the_same_cut() -> None:
    from jaxtribute._src.addons.memory.chains import Chain
    from jaxtribute._src.addons.memory.choosing import Search
    from jaxtribute._src.addons.memory.running import run

    weights, x = _weights(4)

    def loss(weights: Any) -> Any:
        h = jnp.asarray(x)
        for w in weights:
            h = _layer(h, w)
        return jnp.sum(h)

    program = jax.make_jaxpr(loss)(weights)
    chain = Chain(program, [True] * 4, gathers=False, cpu=True)
    search = Search(chain)
    plan = search.best(search.everything().peak // 2)
    assert plan.recomputes
    ends = [piece.stop for piece in plan.pieces]
    eqns = program.jaxpr.eqns
    # The same cut by hand: the same operations, each run of them under `jax.checkpoint` or not.
    pieces = [(piece.start, piece.stop, piece.recomputed) for piece in plan.pieces]
    assert ends[-1] == len(eqns)

    def by_hand(weights: Any) -> Any:
        values = dict(zip(program.jaxpr.invars, weights, strict=True))
        values |= dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        for start, stop, recomputed in pieces:
            inside = eqns[start:stop]
            names = list(dict.fromkeys(v for e in inside for v in e.invars if v in values))

            def call(given: Any, inside: Any = inside, names: Any = names) -> Any:
                known = dict(zip(names, given, strict=True))
                for e in inside:
                    out = e.primitive.bind(*(known[v] for v in e.invars), **e.params)
                    known[e.outvars[0]] = out
                return [known[e.outvars[0]] for e in inside]

            out = (jax.checkpoint(call) if recomputed else call)([values[v] for v in names])
            values |= dict(zip([e.outvars[0] for e in inside], out, strict=True))
        (result,) = program.jaxpr.outvars
        assert not isinstance(result, Literal)
        return values[result]

    mine = jax.jit(jax.value_and_grad(lambda weights: run(chain, plan, weights)[0]))(weights)
    theirs = jax.jit(jax.value_and_grad(by_hand))(weights)
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


def _run(memory: Any, model: Any, devices: int = 2) -> tuple[Any, list[Any]]:
    """The gradient, and what was chosen."""
    weights, x = _weights(4)
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    with strategy.scope():
        variables = [jd.Variable(w) for w in weights]
    choices = Choices()

    def replica_step(x: Any) -> Any:
        replica = jd.get_replica_context()
        grads = jd.grad(lambda: model(replica, x, variables), variables, memory=memory)()
        assert replica is not None
        return replica.all_reduce("SUM", grads)

    @jd.function
    def step(x: Any) -> Any:
        return strategy.run(replica_step, args=(x,))

    batch = next(iter(strategy.experimental_distribute_dataset([x])))
    with observe(choices, "budget"):
        grads = step(batch)
    return [np.asarray(strategy.experimental_local_results(one)[0]) for one in grads], choices.made


def _with_sums(replica: Any, x: Any, variables: Any) -> Any:
    h = x
    for w in variables:
        h = _layer(h, w)
        h = h - replica.all_reduce("MEAN", jnp.mean(h, axis=0, keepdims=True))
    return jnp.sum(h**2) / ROWS


def test_what_meets_other_replicas_is_not_computed_again() -> None:
    whole, (before,) = _run(1 << 40, _with_sums)
    half, (after,) = _run(before.everything // 2, _with_sums)
    assert after.recomputed
    assert after.single >= 4
    for one, other in zip(whole, half, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_losses_that_look_rows_of_tables_up_have_budgets() -> None:
    """The rows are fetched once; the layers behind are computed again."""
    weights, x = _weights(4)
    strategy = jd.MirroredStrategy(2)
    ids = np.argsort(x[:, :2], axis=0).astype(np.int32)

    def trained(memory: int) -> tuple[Any, Any]:
        with strategy.scope():
            table = jd.nn.ShardedTable(ROWS, WIDTH)
            variables = [table, *map(jd.Variable, weights)]
            optimizer = jd.Optimizer(optax.sgd(0.1), variables)
        choices = Choices()

        def loss(ids: Any) -> Any:
            h = jd.nn.embedding_lookup(table, ids, combiner="mean")
            for w in variables[1:]:
                h = _layer(h, w)
            return jnp.sum(h**2) / ROWS

        def replica(ids: Any) -> None:
            optimizer.apply_gradients(jd.grad(lambda: loss(ids), variables, memory=memory)())

        with observe(choices, "budget"):
            jd.function(lambda ids: strategy.run(replica, (ids,)))(
                next(iter(strategy.experimental_distribute_dataset([ids])))
            )
        return [one.numpy() for one in variables], choices.made[-1]

    whole, before = trained(1 << 40)
    less, after = trained(int(before.everything * 0.8))
    assert after.recomputed > 0
    assert after.kept < before.kept
    for one, other in zip(whole, less, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_callbacks_run_once() -> None:
    calls: list[float] = []

    def called(replica: Any, x: Any, variables: Any) -> Any:
        h = x
        for w in variables:
            h = _layer(h, w)
        jax.debug.callback(lambda total: calls.append(float(total)), jnp.sum(h), ordered=False)
        return jnp.sum(h**2) / ROWS

    _, (before,) = _run(1 << 40, called, 1)
    jax.effects_barrier()
    number = len(calls)
    _run(before.everything // 2, called, 1)
    jax.effects_barrier()
    assert number
    assert len(calls) == 2 * number


def test_a_gradient_of_a_gradient() -> None:
    w = jd.Variable(np.linspace(0.1, 1, 64, dtype=np.float32))
    x = jnp.linspace(-1.0, 1.0, 64)

    def total(memory: Any) -> Any:
        def inner() -> Any:
            return jnp.sum(_layer_like(w.read_value(), x))

        def outer() -> Any:
            return jnp.sum(jd.grad(inner, w, memory=memory)() ** 2)

        return jd.function(jd.grad(outer, w, memory=memory))()

    def _layer_like(w: Any, x: Any) -> Any:
        return jnp.sin(jnp.exp(jnp.tanh(jnp.sin(jnp.exp(jnp.tanh(jnp.sin(jnp.exp(jnp.tanh(w * x)))))))))

    np.testing.assert_allclose(total(4000), total(None), rtol=1e-5)


@pytest.mark.parametrize(
    ("memory", "error"),
    [
        (0, ArgumentError),
        (-1, ArgumentError),
        ("much", ArgumentError),
        (True, ArgumentTypeError),
        (1.5, ArgumentTypeError),
    ],
)
def test_no_number_of_bytes(memory: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"HINT: write memory="):
        jd.grad(lambda: 0.0, jd.Variable(1.0), memory=memory)
    with pytest.raises(error, match=r"HINT: write memory="):
        jd.config.set_memory_budget(memory)


def test_a_budget_that_cannot_be_held_is_refused_with_the_figures() -> None:
    with pytest.raises(ArgumentError, match=r"needs [\d.]+ KiB .* memory=1024 allows 1.0 KiB; without .* HINT"):
        _run("1KiB", lambda _, x, variables: jnp.sum(_layer(_layer(x, variables[0]), variables[1])))


def test_the_default_holds_for_losses_that_name_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(_: Any, x: Any, variables: Any) -> Any:
        for w in variables:
            x = _layer(x, w)
        return jnp.sum(x)

    assert not _run(None, model)[1]
    whole = _run("1GiB", model)[1][0].everything
    jd.config.set_memory_budget(whole // 2)
    try:
        (choice,) = _run(None, model)[1]
    finally:
        jd.config.set_memory_budget(None)
    assert choice.recomputed
    monkeypatch.setenv("JAXTRIBUTE_MEMORY", f"{whole // 2}B")
    (choice,) = _run(None, model)[1]
    assert choice.recomputed


def test_auto_keeps_all_where_the_device_does_not_say_what_it_has() -> None:
    (choice,) = _run("auto", lambda _, x, variables: jnp.sum(_layer(x, variables[0])))[1]
    assert choice.budget is None
    assert not choice.recomputed


def test_a_model_minimizes_within_a_budget() -> None:
    weights, x = _weights(4)

    def trained(memory: Any) -> list[Any]:
        model = jd.Model({str(i): jnp.asarray(w) for i, w in enumerate(weights)}, optax.sgd(0.1))

        def loss(x: Any) -> Any:
            for i in range(4):
                x = _layer(x, model.parameters[str(i)].read_value())
            return jnp.mean(x**2)

        @jd.function
        def step(x: Any) -> Any:
            return model.minimize(loss, x, memory=memory)

        return [float(step(jnp.asarray(x))) for _ in range(4)]

    np.testing.assert_allclose(trained("250KiB"), trained(None), rtol=1e-6)
