"""One mistake is told once, whatever becomes of a wrong gradient: clipped, averaged, scaled by norms."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import testing
from jaxtribute._src.addons.verify.arrangements import Arrangement
from jaxtribute._src.addons.verify.catalogue import CATALOGUE
from jaxtribute._src.addons.verify.comparing import Difference
from jaxtribute._src.addons.verify.culprit import Culprit
from jaxtribute._src.addons.verify.grouping import Group, Judged, add_findings, grouped
from jaxtribute._src.addons.verify.sources import Place
from jaxtribute._src.addons.verify.verdict import Verdict
from marked_lines import line_of

ROWS, COLUMNS, DECAY = 12, 60, 0.9
EVEN, UNEVEN = Arrangement((6, 6)), Arrangement((6, 5))
CLIP = optax.clip_by_global_norm(0.5)
TRANSFORMS = {
    "adam": optax.chain(optax.clip_by_global_norm(1e3), optax.adamw(1e-2)),
    "trust": optax.chain(CLIP, optax.lamb(1e-2)),
    "norm": optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.1)),
    "finite": optax.apply_if_finite(optax.chain(CLIP, optax.adam(1e-2)), 3),
    "adaptive": optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1, momentum=0.9)),
}


def rows() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(ROWS, COLUMNS)).astype("f"), random.normal(size=ROWS).astype("f")


def verified(step: Any, strategy: jd.Strategy) -> testing.Verdict:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return testing.verify(step, *rows(), strategy=strategy, raises=False)


def averaged(strategy: jd.Strategy, transform: Any) -> Any:
    """A step with averages of the weights, whose names are those of the weights; one gradient is very small."""
    first = {"faint": jnp.full(COLUMNS, 0.3), "plain": jnp.full(COLUMNS, 0.3)}
    with strategy.scope():
        model, average = jd.Model(first, transform), jd.Model(first)

    def loss(x: Any, y: Any) -> Any:
        weights: Any = model.value
        return ((x @ weights["plain"] + 1e-3 * (x @ weights["faint"]) - y) ** 2).mean()  # at: averaged

    @jd.function
    def step(x: Any, y: Any) -> Any:
        value = strategy.reduce("SUM", strategy.run(model.minimize, (loss, x, y)), axis=None)
        for mine, theirs in zip(average.trainable_variables, model.trainable_variables, strict=True):
            mine.assign(DECAY * mine.read_value() + (1 - DECAY) * theirs.read_value())
        return value

    return step


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_what_a_wrong_gradient_leads_to_is_no_mistake_of_its_own(transform: Any) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    found = verified(averaged(strategy, transform), strategy)
    assert [one.culprit.pattern.name for one in found.findings] == ["local-mean"], str(found)
    place = found.findings[0].culprit.place
    assert place is not None
    assert place.line == line_of(__file__, "averaged"), str(found)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("bound", [1e-2, 0.5, 1e3])
def test_a_mean_that_a_clip_hides_on_batches_that_divide_is_named_as_without_the_clip(bound: float) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = jd.Variable(jnp.full(COLUMNS, 0.3))
        optimizer = jd.Optimizer(optax.chain(optax.clip_by_global_norm(bound), optax.sgd(0.1)), [w])

    def update(x: Any, y: Any) -> None:
        _, gradients = jd.value_and_grad(lambda: jnp.square(x @ w - y).mean(), [w])()
        optimizer.apply_gradients(gradients)

    @jd.function
    def step(x: Any, y: Any) -> None:
        strategy.run(update, (x, y))

    found = verified(step, strategy)
    assert [one.culprit.pattern.name for one in found.findings] == ["local-mean"], str(found)
    assert not found.findings[0].conditional, str(found)


@pytest.mark.parametrize("rate", [1e-1, 1e-5], ids=["large", "small"])
def test_a_mistake_is_found_behind_code_around_the_replicas_also_by_small_changes_of_large_values(rate: float) -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = jd.Variable(jnp.full(COLUMNS, 0.3))
        optimizer = jd.Optimizer(optax.sgd(rate), [w])

    def gradient(x: Any, y: Any) -> Any:
        return jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(w.read_value())  # at: around

    def update(gradient: Any) -> None:
        optimizer.apply_gradients([gradient], reduce_op=None)

    @jd.function
    def step(x: Any, y: Any) -> Any:
        loss, gradients = strategy.run(gradient, (x, y))
        total = strategy.reduce("SUM", gradients, axis=None)
        strategy.run(update, (total / jnp.maximum(1.0, jnp.linalg.norm(total) / 100),))
        return strategy.reduce("MEAN", loss, axis=None)

    found = verified(step, strategy)
    assert {one.culprit.pattern.name for one in found.findings} <= {"local-mean", "mean-of-means"}, str(found)
    assert {place.line for one in found.findings if (place := one.culprit.place)} == {line_of(__file__, "around")}, str(
        found
    )


def difference(name: str, variable: Any = None) -> Difference:
    return Difference(name, 1.0, 2.0, 1.0, variable, state=True)


def judged(pattern: str, line: int, behind: frozenset[str] = frozenset(), *, guess: bool = False) -> Judged:
    culprit = Culprit(CATALOGUE[pattern], Place("train.py", line), guess=guess)
    return Judged(Group([EVEN], EVEN, [difference(f"of line {line}")], []), culprit, behind)


def test_a_guess_is_no_mistake_of_its_own_where_a_mistake_is_behind_it() -> None:
    behind = frozenset({str(judged("local-mean", 3).culprit.place)})
    for guess, lines in (judged("one-replica", 9, behind, guess=True), [3]), (judged("one-replica", 9, behind), [9, 3]):
        verdict = Verdict("step", tried=[EVEN])
        add_findings(verdict, [guess, judged("local-mean", 3)])
        assert [one.culprit.place and one.culprit.place.line for one in verdict.findings] == lines
        assert sum(len(one.differences) for one in verdict.findings) == 2


def test_a_guess_that_no_mistake_explains_is_told_last() -> None:
    verdict = Verdict("step", tried=[EVEN])
    add_findings(verdict, [judged("one-replica", 9, frozenset({"train.py:5"}), guess=True), judged("local-mean", 3)])
    assert [one.culprit.pattern.name for one in verdict.findings] == ["local-mean", "one-replica"]


def test_variables_of_one_name_are_told_apart() -> None:
    first, second = difference("w", jd.Variable(1.0)), difference("w", jd.Variable(1.0))
    groups = list(grouped([(EVEN, [first]), (UNEVEN, [first, second])]))
    assert [group.where for group in groups] == [[EVEN, UNEVEN], [UNEVEN]]
    assert [group.apart for group in groups] == [[first], [second]]
