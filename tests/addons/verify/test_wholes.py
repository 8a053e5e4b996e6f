"""Losses and values that each replica has as a whole are told as such, by the line that they leave from."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing
from marked_lines import line_of
from replicas import everyone, here, total

ROWS = 12
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=ROWS).astype(np.float32)


# What a replica computes of all rows, or of sums over them. Lines within are right.


def evidence(w: Any, x: Any, y: Any) -> Any:
    """The negative evidence of a Gaussian process, for each row."""
    apart = ((x[:, None] - x[None]) ** 2 * jnp.exp(w)).sum(-1)
    root = jnp.linalg.cholesky(jnp.exp(-apart) + jnp.eye(len(x)))
    solved = jax.scipy.linalg.solve_triangular(root, y, lower=True)
    return (0.5 * (solved**2).sum() + jnp.log(jnp.diag(root)).sum()) / len(x)


def negatives(one: Any, other: Any) -> Any:
    each = optax.softmax_cross_entropy_with_integer_labels(one @ other.T, jnp.arange(len(one)))
    return each.mean()


def correlated(moment: Any) -> Any:
    return ((moment - jnp.eye(len(moment))) ** 2).sum()


# Losses: each replica has the whole, of which it should take its `share`.


def process(w: Any, x: Any, y: Any, share: Any) -> Any:
    rows, targets = everyone(x), everyone(y)
    return share(evidence(w, rows, targets))  # at: process


def contrasted(w: Any, x: Any, y: Any, share: Any) -> Any:
    del y
    one, other = everyone(x * w), everyone(jnp.tanh(x))
    loss = negatives(one, other)  # at: contrasted
    return share(loss)


def kernel(w: Any, x: Any, y: Any, share: Any) -> Any:
    rows = everyone(x) * w
    apart = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    from_targets = jnp.exp(-((rows - everyone(y)[:, None]) ** 2)).mean()
    return share(jnp.exp(-apart).mean() - from_targets)  # at: kernel


def covariance(w: Any, x: Any, y: Any, share: Any) -> Any:
    del y
    features = jnp.tanh(x * w)
    return share(correlated(total(features.T @ features) / ROWS))  # at: covariance


def spread(w: Any, x: Any, y: Any, share: Any) -> Any:
    del y
    rows = everyone(x) * w
    return share(jnp.sqrt(rows.var(0) + 1e-4).sum())  # at: spread


def ordered(w: Any, x: Any, y: Any, share: Any) -> Any:
    del y
    scores = jnp.sort(everyone(x @ w))
    return share((scores * jnp.linspace(-1, 1, len(scores))).mean())  # at: ordered


def logarithm(w: Any, x: Any, y: Any, share: Any) -> Any:
    return share(jnp.log(total(((x @ w - y) ** 2).sum())))  # at: logarithm


def balanced(w: Any, x: Any, y: Any, share: Any) -> Any:
    extra = 0.1 * correlated(total((x * w).T @ (x * w)) / ROWS)  # at: balanced
    return ((x @ w - y) ** 2).sum() / ROWS + share(extra)


def added(w: Any, x: Any, y: Any, share: Any) -> Any:
    whole = evidence(w, everyone(x), everyone(y))  # at: added
    return ((x @ w - y) ** 2).sum() / ROWS + share(whole)


LOSSES = [process, contrasted, kernel, covariance, spread, ordered, logarithm, balanced, added]


def all_of_it(value: Any) -> Any:
    return value


def part_of_it(value: Any) -> Any:
    return value / here().num_replicas_in_sync


def verdict(
    replica: Callable[..., Any],
    *,
    returns: bool,
    transform: Any = None,
    first: Any = (0.5, -0.3, 0.2, 0.4),
    **settings: Any,
) -> testing.Verdict:
    """What comes of a replica function of a variable, its optimizer, the rows and a variable for statistics."""
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = jd.Variable(np.array(first, np.float32), name="w")
        optimizer = jd.Optimizer(transform or optax.sgd(0.1), [w])
        seen = jd.Variable(0.0, trainable=False, name="seen", **settings) if settings else None

    @jd.function
    def step(x: Any, y: Any) -> Any:
        results = strategy.run(lambda x, y: replica(w, optimizer, x, y, seen), (x, y))
        return strategy.reduce("SUM", results, axis=None) if returns else None

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return testing.verify(step, X, Y, strategy=strategy, raises=False)


def told(found: testing.Verdict) -> tuple[list[str], list[int]]:
    """The names of what was found, and the lines."""
    culprits = [one.culprit for one in found.findings]
    lines = [culprit.place.line for culprit in culprits if culprit.place is not None]
    return [culprit.pattern.name for culprit in culprits], lines


def by_variables(loss: Any, share: Any) -> Any:
    def replica(w: Any, optimizer: Any, x: Any, y: Any, _: Any) -> Any:
        value, gradients = jd.value_and_grad(lambda: loss(w.read_value(), x, y, share), [w])()
        optimizer.apply_gradients(gradients)
        return value

    return replica


def by_arrays(loss: Any, share: Any) -> Any:
    def replica(w: Any, optimizer: Any, x: Any, y: Any, _: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(w.read_value(), x, y, share)
        optimizer.apply_gradients([total(gradient)], reduce_op=None)
        return value

    return replica


@pytest.mark.quick_cases(4, whole=True)
@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("how", [by_variables, by_arrays])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_whole_loss_is_told_by_the_line_that_it_leaves_from(loss: Any, how: Any, returns: bool) -> None:
    found = verdict(how(loss, all_of_it), returns=returns)
    assert told(found) == (["whole-on-each-replica"], [line_of(__file__, loss.__name__)]), str(found)
    assert "/ jd.get_replica_context().num_replicas_in_sync" in str(found), str(found)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_share_of_a_whole_loss_raises_no_alarm(loss: Any) -> None:
    found = verdict(by_variables(loss, part_of_it), returns=True)
    assert not found.findings, str(found)
    assert found.tried, str(found)


def gathered_before(w: Any, optimizer: Any, x: Any, y: Any, _: Any) -> None:
    rows, targets = everyone(x), everyone(y)
    gradients = jd.grad(
        lambda: evidence(w.read_value(), rows, targets),  # at: gathered before
        [w],
    )()
    optimizer.apply_gradients(gradients)


def penalized(w: Any, optimizer: Any, x: Any, y: Any, _: Any) -> None:
    def loss() -> Any:
        slopes = jax.vmap(jax.grad(lambda row: jnp.tanh(row * w.read_value()).sum()))(everyone(x))
        norms = jnp.sqrt((slopes**2).sum(-1))
        return ((norms - 1) ** 2).mean()  # at: penalized

    optimizer.apply_gradients(jd.grad(loss, [w])())


def measured(w: Any, optimizer: Any, x: Any, y: Any, _: Any) -> Any:
    gradients = jd.grad(lambda: ((x @ w.read_value() - y) ** 2).sum() / ROWS, [w])()
    optimizer.apply_gradients(gradients)
    scores, targets = everyone(x @ w.read_value()), everyone(y)
    positive = targets > 0
    return jnp.where(positive[:, None] & ~positive, scores[:, None] > scores, 0).mean()  # at: measured


def kept(w: Any, optimizer: Any, x: Any, y: Any, seen: Any) -> None:
    optimizer.apply_gradients(jd.grad(lambda: ((x @ w.read_value() - y) ** 2).sum() / ROWS, [w])())
    seen.assign(everyone(y).var())  # at: kept


@pytest.mark.parametrize(
    ("replica", "mark", "advice", "settings"),
    [
        (gathered_before, "gathered before", "evidence(w.read_value(), rows, targets) / jd.get_replica_context()", {}),
        (penalized, "penalized", "((norms - 1) ** 2).mean() / jd.get_replica_context()", {}),
        (measured, "measured", ".mean() / jd.get_replica_context()", {}),
        (kept, "kept", "make seen with aggregation='only_first_replica'", {"aggregation": "sum"}),
    ],
)
def test_a_whole_value_is_told_with_what_to_write(replica: Any, mark: str, advice: str, settings: Any) -> None:
    found = verdict(replica, returns=replica is measured, **settings)
    assert told(found) == (["whole-on-each-replica"], [line_of(__file__, mark)]), str(found)
    assert advice in str(found), str(found)


def decayed(w: Any, x: Any, y: Any, share: Any) -> Any:
    return ((x @ w - y) ** 2).sum() / ROWS + share(0.1 * (w**2).sum())  # at: decayed


def summed(w: Any, x: Any, y: Any, share: Any) -> Any:
    return share(here().all_reduce("SUM", ((x @ w - y) ** 2).sum() / ROWS))  # at: summed


@pytest.mark.parametrize(
    ("loss", "name", "advice"),
    [
        (decayed, "counted-on-each-replica", "scale_regularization_loss(0.1 * (w**2).sum())"),
        (summed, "reduced-twice", "leave one of the two reductions out"),
    ],
)
def test_what_is_made_of_no_gathered_rows_has_another_name(loss: Any, name: str, advice: str) -> None:
    for returns in (True, False):
        found = verdict(by_variables(loss, all_of_it), returns=returns)
        assert told(found) == ([name], [line_of(__file__, loss.__name__)]), str(found)
        assert advice in str(found), str(found)


# Functions that an optimizer is given: their results are reduced.

SAM = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.05), sync_period=2, opaque_mode=True)


def _update(gradients: Any, state: Any, params: Any = None, *, curvature: Any, **_: Any) -> Any:
    return jax.tree.map(lambda one, by: -0.1 * one / (1 + jnp.abs(by)), gradients, curvature(params)), state


NEWTON: Any = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), _update)  # type: ignore[arg-type]


def with_functions(name: str, reduce: Any) -> Any:
    """A replica function that gives the optimizer a function, whose own results are what `reduce` makes of them."""

    def replica(w: Any, optimizer: Any, x: Any, y: Any, _: Any) -> None:
        def loss(params: Any) -> Any:
            return ((x @ params[0] - y) ** 2).sum() / ROWS

        params = [w.read_value()]
        value, gradients = jax.value_and_grad(loss)(params)
        functions = {
            "grad_fn": lambda params, _: reduce(jax.grad(loss)(params)),
            "value_fn": lambda params: reduce(loss(params)),
            "curvature": lambda params: reduce([jnp.diag(jax.hessian(lambda one: loss([one]))(params[0]))]),
        }
        known = {"value": value, "grad": gradients} if name == "value_fn" else {}
        optimizer.apply_gradients(gradients, **known, **{name: functions[name]})

    return replica


def twice(value: Any) -> Any:
    return here().all_reduce("SUM", value)  # at: twice


GIVEN = [("grad_fn", SAM), ("value_fn", optax.lbfgs()), ("curvature", NEWTON)]


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize(("name", "transform"), GIVEN)
def test_a_function_for_the_optimizer_that_reduces_is_told(name: str, transform: Any) -> None:
    found = verdict(with_functions(name, twice), returns=False, transform=transform, first=np.ones(4))
    assert told(found) == (["reduced-twice"], [line_of(__file__, "twice")]), str(found)
    assert "INSTEAD: return the replica's own value" in str(found), str(found)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize(("name", "transform"), GIVEN)
def test_a_function_for_the_optimizer_that_returns_a_part_raises_no_alarm(name: str, transform: Any) -> None:
    found = verdict(with_functions(name, all_of_it), returns=False, transform=transform, first=np.ones(4))
    assert not found.findings, str(found)
    assert found.tried, str(found)


def test_a_line_search_that_ends_elsewhere_says_what_functions_return() -> None:
    search = optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(max_backtracking_steps=5))
    found = verdict(with_functions("value_fn", twice), returns=False, transform=search)
    assert found.findings, str(found)
    assert "return the replica's own value from a function" in str(found), str(found)


def test_a_whole_value_of_a_function_for_the_optimizer_is_told() -> None:
    def replica(w: Any, optimizer: Any, x: Any, y: Any, _: Any) -> None:
        rows, targets = everyone(x), everyone(y)

        def of_all(params: Any) -> Any:
            return ((rows @ params[0] - targets) ** 2).mean()  # at: of all

        value, gradients = jax.value_and_grad(lambda params: ((x @ params[0] - y) ** 2).sum() / ROWS)([w.read_value()])
        optimizer.apply_gradients(gradients, value=value, grad=gradients, value_fn=of_all)

    found = verdict(replica, returns=False, transform=optax.lbfgs(), first=np.ones(4))
    assert told(found) == (["whole-on-each-replica"], [line_of(__file__, "of all")]), str(found)


def test_a_regularizer_in_a_function_for_the_optimizer_is_told_as_one() -> None:
    def replica(w: Any, optimizer: Any, x: Any, y: Any, _: Any) -> None:
        def slope(params: Any) -> Any:
            return jax.grad(lambda w: ((x @ w - y) ** 2).sum() / ROWS)(params[0])

        def again(params: Any, _: Any) -> Any:
            return [slope(params) + 0.1 * params[0]]  # at: again

        optimizer.apply_gradients([slope([w.read_value()])], grad_fn=again)

    found = verdict(replica, returns=False, transform=SAM)
    assert told(found) == (["counted-on-each-replica"], [line_of(__file__, "again")]), str(found)
