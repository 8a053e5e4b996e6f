import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.core import context as contexts
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError
from replicas import components, each_executor, execute, fraction, here, ident, mirrored, per_replica, variable

STEP = 1e-2


def differences(loss: Callable[[Any], float], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The gradient of `loss` at `x` by central differences."""
    flat = x.astype(np.float64).ravel()
    result = np.zeros_like(flat)
    for i in range(flat.size):
        up, down = flat.copy(), flat.copy()
        up[i] += STEP
        down[i] -= STEP
        result[i] = (loss(up.reshape(x.shape)) - loss(down.reshape(x.shape))) / (2 * STEP)
    return result.reshape(x.shape)


@pytest.mark.parametrize("keep", [jax.jit, jax.checkpoint])
def test_a_function_that_jax_has_kept_is_differentiated_all_the_same(keep: Any) -> None:
    v = jd.Variable(3.0)
    kept = keep(lambda x: x * v.read_value())

    def thrice() -> list[Any]:
        return [kept(jnp.float32(2)), jd.grad(lambda: kept(jnp.float32(2)), v)(), kept(jnp.float32(2))]

    for run in (thrice, jd.function(thrice), thrice):
        assert list(map(float, run())) == [6, 2, 6]


@pytest.mark.parametrize("how", ["eager", "function"])
def test_gradients_of_variables_are_jaxs(how: str) -> None:
    w, b = jd.Variable(jnp.arange(6.0).reshape(2, 3) / 10), jd.Variable(jnp.ones((1, 3)))

    def plain(w: Any, b: Any, x: Any) -> Any:
        return (jnp.tanh(x @ w + b) ** 2).sum()

    def loss(x: Any, *, scale: float) -> Any:
        return plain(w.read_value(), b.read_value(), x) * scale

    x = jnp.asarray([[1.0, -2.0]])
    both = jd.value_and_grad(loss, {"w": w, "b": [b]})
    value, grads = (jd.function(both) if how == "function" else both)(x, scale=2.0)
    expected, (dw, db) = jax.value_and_grad(plain, (0, 1))(w.read_value(), b.read_value(), x)
    np.testing.assert_allclose(value, 2 * expected, rtol=1e-6)
    np.testing.assert_allclose(grads["w"], 2 * dw, rtol=1e-4)
    np.testing.assert_allclose(grads["b"][0], 2 * db, rtol=1e-4)


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_loss_that_reads_none_of_its_variables_is_told(how: str) -> None:
    v, w = jd.Variable(2.0), jd.Variable(3.0)
    before = v.read_value()
    kept = jax.jit(lambda: v * 2.0)

    def gradient(loss: Any, variables: Any) -> Any:
        call: Any = jd.value_and_grad(loss, variables)
        step: Any = jd.function(call) if how == "compiled" else call
        return step()[1]

    with pytest.warns(UserWarning, match=r"test_autodiff.py:\d+: a loss reads none of its variables.*HINT"):
        assert list(map(float, gradient(lambda: before * 2.0, [v, w]))) == [0, 0]
    with warnings.catch_warnings(action="error"):
        assert list(map(float, gradient(lambda: v * before, [v, w]))) == [2, 0]
        for _ in range(2):
            assert float(gradient(kept, v)) == 2.0


def test_one_variable_gives_one_gradient() -> None:
    v = jd.Variable(3.0)
    assert float(jd.grad(lambda: v * v, v)()) == 6.0
    value, gradient = jd.value_and_grad(lambda x: v * x, v)(jnp.float32(5))
    assert (float(value), float(gradient)) == (15.0, 5.0)


@pytest.mark.parametrize("unconnected", ["none", "zero"])
@pytest.mark.parametrize("how", ["compiled", "eager"])
def test_a_loss_may_be_a_variable(how: str, unconnected: Any) -> None:
    v = jd.Variable(3.0)
    one = jd.value_and_grad(lambda: v, v, unconnected_gradients=unconnected)
    two = jd.value_and_grads(lambda: (v, v * v), (v, v), unconnected_gradients=unconnected)
    (value, gradient), (values, gradients) = (jd.function(f)() if how == "compiled" else f() for f in (one, two))
    assert jax.tree.map(float, (value, gradient, values, gradients)) == (3.0, 1.0, (3.0, 9.0), (1.0, 6.0))


def test_aux() -> None:
    v = jd.Variable(3.0)
    fn = lambda: (v * v, {"v": v + 1.0, "text": "kept"})  # noqa: E731
    (value, aux), gradient = jd.value_and_grad(fn, v, has_aux=True)()
    assert (float(value), float(aux["v"]), float(gradient), aux["text"]) == (9.0, 4.0, 6.0, "kept")
    gradient, aux = jd.grad(fn, v, has_aux=True)()
    assert (float(gradient), float(aux["v"])) == (6.0, 4.0)


@pytest.mark.parametrize("how", ["eager", "function"])
def test_what_the_function_writes_is_kept(how: str) -> None:
    v, count, mean = jd.Variable(3.0), jd.Variable(0), jd.Variable(1.0)

    def loss() -> Any:
        count.assign_add(1)
        mean.assign(mean * 0.5 + v * 0.5)
        v.assign_sub(1.0)
        return v * v + mean

    step = jd.value_and_grad(loss, [v, mean])
    value, gradients = (jd.function(step) if how == "function" else step)()
    assert (float(value), int(count.numpy()), float(mean.numpy()), float(v.numpy())) == (6.0, 1, 2.0, 2.0)
    assert [float(g) for g in gradients] == [4.5, 0.5]


def test_variables_that_are_not_asked_for_are_constants() -> None:
    v, w = jd.Variable(3.0), jd.Variable(2.0)
    assert float(jd.grad(lambda: v * w, v)()) == 2.0
    with pytest.warns(UserWarning, match="reads none of its variables"):
        assert float(jd.grad(lambda: w * w, v)()) == 0.0


def test_gradients_have_the_variables_dtype() -> None:
    v = jd.Variable(jnp.ones(2, jnp.bfloat16))
    gradient = jd.grad(lambda: jnp.sum(v * v), v)()
    assert gradient.dtype == jnp.bfloat16
    assert gradient.shape == (2,)


def test_nested_gradients() -> None:
    v, w = jd.Variable(3.0), jd.Variable(2.0)
    second = jd.grad(jd.grad(lambda: v**3 * w, v), v)
    assert float(second()) == 36.0
    mixed = jd.grad(jd.grad(lambda: v * v * w, v), w)
    assert float(mixed()) == 6.0
    assert [float(g) for g in jax.grad(lambda x, y: jd.grad(lambda: v * x * y, v)(), (0, 1))(2.0, 5.0)] == [5.0, 2.0]


def test_plain_arrays_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"holds a .*not a jd.Variable. HINT: for plain arrays use jax"):
        jd.grad(lambda: 0.0, [jnp.ones(2)])


def test_a_failing_function_writes_nothing() -> None:
    v = jd.Variable(1.0)

    def loss() -> Any:
        v.assign_add(1.0)
        raise KeyError

    with pytest.raises(KeyError):
        jd.grad(loss, v)()
    assert v.numpy() == 1.0


@each_executor
def test_a_replicas_gradient_is_its_own(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, [1.0, 2.0])
    gradient = execute(executor, strategy, jd.grad(lambda: (v * v).sum() * (fraction() + 1), v))
    assert components(gradient) == [[2.0, 4.0], [4.0, 8.0]]


@each_executor
def test_statistics_written_in_a_replica(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, 2.0)
    seen = variable(
        strategy, 0.0, synchronization=jd.VariableSynchronization.ON_READ, aggregation=jd.VariableAggregation.SUM
    )
    mean = variable(strategy, 0.0, aggregation=jd.VariableAggregation.MEAN)

    def loss() -> Any:
        seen.assign_add(fraction() + 1)
        if executor == "compiled":
            mean.assign(fraction())
        return v * v

    assert components(execute(executor, strategy, jd.grad(loss, v))) in ([4.0, 4.0], [[4.0, 4.0]])
    assert seen.numpy() == 3.0
    assert mean.numpy() == (0.5 if executor == "compiled" else 0.0)


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: here().all_reduce("SUM", x * x),
    "mean": lambda x: here().all_reduce("MEAN", {"a": x * x, "b": [x.sum()]})["a"],
    "packed": lambda x: sum(y.sum() for y in here().all_reduce("SUM", [x * x, x.sum(), jnp.sin(x)])),
    "gather": lambda x: here().all_gather(x * x, axis=0) * jnp.arange(4.0),
    "gather axis 1": lambda x: here().all_gather(jnp.stack([x, x * x]), axis=1) * jnp.arange(4.0)[None],
    "twice": lambda x: here().all_reduce("SUM", jnp.tanh(here().all_reduce("MEAN", x * x))),
}


@pytest.mark.quick_cases(4)
@each_executor
@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_gradients_through_collectives(executor: str, name: str) -> None:
    strategy, collective = mirrored(2), COLLECTIVES[name]
    parts = np.asarray([[0.5, -1.0], [2.0, 0.25]], np.float32)

    def loss(x: Any) -> Any:
        return (collective(x) * (fraction() + 1)).sum()

    def whole(values: Any) -> float:
        each = per_replica(strategy, [np.asarray(part, np.float32) for part in values])
        return float(strategy.reduce("SUM", step(each), axis=None))

    step = jd.function(lambda x: strategy.run(loss, (x,)))
    gradient = execute(executor, strategy, jax.grad(loss), per_replica(strategy, list(parts)))
    np.testing.assert_allclose(components(gradient), differences(whole, parts), rtol=2e-2, atol=2e-2)


@each_executor
def test_gradients_of_variables_through_collectives(executor: str) -> None:
    strategy = mirrored(2)
    v = variable(strategy, [1.0, 2.0])

    def loss() -> Any:
        total = here().all_reduce("SUM", v * (fraction() + 1))
        return (total * total).sum()

    # Each replica's loss is (3v)^2; the cotangents of both are added up: 2 * 2 * 3v * (replica + 1).
    assert components(execute(executor, strategy, jd.grad(loss, v))) == [[12.0, 24.0], [24.0, 48.0]]


def test_gradients_through_a_compiled_merge_call() -> None:
    strategy = mirrored(2)

    def loss(x: Any) -> Any:
        return here().merge_call(lambda s, y: s.reduce("MEAN", y, axis=None), (x * x,)).sum()

    gradient = execute("compiled", strategy, lambda: jax.grad(loss)(jnp.ones(2) * (fraction() + 1)))
    assert components(gradient) == [[2.0, 2.0], [4.0, 4.0]]


@pytest.mark.parametrize("inside", ["grad", "vmap", "jit", "scan"])
@pytest.mark.parametrize("what", ["merge_call", "all_reduce", "first"])
def test_lockstep_collectives_inside_transformations_teach(inside: str, what: str) -> None:
    strategy = mirrored(2)

    def use(x: Any) -> Any:
        if what == "merge_call":
            return here().merge_call(lambda s, y: s.reduce("MEAN", y, axis=None), (x,))
        return here().all_reduce("SUM", x) if what == "all_reduce" else contexts.current().executor.select(x, 0)

    def fn() -> Any:
        if inside == "scan":
            return jax.lax.scan(lambda c, x: (c + use(x), x), jnp.float32(0), jnp.ones(2))
        apply = {"grad": jax.grad, "vmap": jax.vmap, "jit": jax.jit}[inside](use)
        return apply(jnp.ones(2) if inside == "vmap" else jnp.float32(1))

    if inside == "grad" and what != "merge_call":
        for executor in ("lockstep", "compiled"):
            assert components(execute(executor, strategy, fn)) == ([2.0, 2.0] if what == "all_reduce" else [2.0, 0.0])
    else:
        with pytest.raises(jd.errors.ContextError, match=r"inside jax.jit, jax.*HINT: use jd.function"):
            strategy.run(fn)
        if what != "merge_call" or inside != "vmap":
            assert execute("compiled", strategy, fn) is not None


@each_executor
def test_gradients_by_an_integer_variable_are_jaxs_error(executor: str) -> None:
    v = variable(mirrored(2), 1)
    with pytest.raises(TypeError, match="int32"):
        execute(executor, mirrored(2), jd.grad(lambda: v.read_value().astype(float) * ident().astype(float), v))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_several_losses_of_one_computation(replicas: int, compiled: bool) -> None:
    """Gradients of x v w and x (v + w) w by hand; what the function counts it counts once."""
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    with strategy.scope():
        v, w = jd.Variable(2.0), jd.Variable([3.0, 5.0])
        count = jd.Variable(0, aggregation="only_first_replica")

    def losses(x: Any) -> Any:
        count.assign_add(1)
        return (x * v * w.read_value().sum(), x * (v + w) * w), {"x": x}  # the second one has two elements

    def step() -> Any:
        return strategy.run(jd.value_and_grads(losses, ({"v": v}, (w, [v, w])), has_aux=True), (jnp.float32(10),))

    (found, aux), (first, (second, (third, fourth))) = (jd.function(step) if compiled else step)()
    ours = lambda value: np.asarray(strategy.experimental_local_results(value)[0])  # noqa: E731
    assert ours(found[0]) == 160
    np.testing.assert_array_equal(ours(found[1]), [150, 350])
    assert ours(aux["x"]) == 10
    assert ours(first["v"]) == ours(third) == 80
    np.testing.assert_array_equal(ours(second), [80, 120])
    np.testing.assert_array_equal(ours(fourth), [80, 120])
    assert count.numpy() == 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("has_aux", [False, True])
@pytest.mark.parametrize("differentiate", [jd.grad, jd.value_and_grad])
def test_a_loss_that_is_no_scalar_tells_its_shape(differentiate: Any, has_aux: bool, compiled: bool) -> None:
    w = jd.Variable(jnp.ones((2, 3)))
    step: Any = differentiate(lambda: (w * w, 1) if has_aux else w * w, [w], has_aux=has_aux)
    given: Any = jd.function(step) if compiled else step
    with pytest.raises(ShapeError, match=r"the loss has shape \(2, 3\), and is no scalar. HINT: return its mean"):
        given()
    remedy = jd.value_and_grads(lambda: (w * w,), ([w],))
    (value,), ((gradient,),) = (jd.function(remedy) if compiled else remedy)()
    np.testing.assert_array_equal(value, np.ones((2, 3)))
    np.testing.assert_array_equal(gradient, np.full((2, 3), 2))


def test_a_variable_that_stands_twice_has_its_gradient_twice() -> None:
    w = jd.Variable(3.0)
    one, (two,) = jd.grad(lambda: w * w, (w, [w]))()
    assert float(one) == float(two) == 6


@pytest.mark.parametrize(
    ("variables", "losses"), [((), ()), (3.0, (1.0,)), (1, (1.0, 2.0)), (2, (1.0,)), (1, 1.0), (1, [1.0])]
)
def test_several_losses_are_counted(variables: Any, losses: Any) -> None:
    w = jd.Variable(1.0)
    given = (w,) * variables if isinstance(variables, int) else variables
    with pytest.raises((ArgumentError, ArgumentTypeError), match="HINT"):
        jd.value_and_grads(lambda: jax.tree.map(lambda loss: loss * w, losses), given)()


def test_writes_of_the_first_replicas_value_within_a_gradient_are_the_same_eagerly() -> None:
    def trained(compiled: bool) -> Any:
        strategy = jd.MirroredStrategy(2)
        with strategy.scope():
            w = jd.Variable(jnp.array([1.0, 2.0]))
            kept = jd.Variable(jnp.zeros(2), trainable=False, aggregation="only_first_replica")
        x = strategy.experimental_distribute_values_from_function(
            lambda context: jnp.array([1.0, 3.0]) * (1 + context.replica_id_in_sync_group)
        )

        def step(x: Any) -> Any:
            def loss() -> Any:
                kept.assign(w * x)
                return (w * x).sum() + (kept * x).sum()

            return jd.value_and_grad(loss, [w])()

        def run(x: Any) -> Any:
            return strategy.run(step, (x,))

        loss, (gradient,) = (jd.function(run) if compiled else run)(x)
        return [np.asarray(one).tolist() for one in (*loss.values, *gradient.values, kept)]

    # The first replica's product is read by both, and so its gradient is of both their losses.
    assert trained(True) == trained(False) == [26.0, 52.0, [4.0, 30.0], [2.0, 6.0], [1.0, 6.0]]
