"""Advice in place of a pattern's own words, where those would lead to another mistake."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtribute import Variable
from jaxtribute._src.addons.verify.advising import own_part, whole_part
from jaxtribute._src.addons.verify.catalogue import CATALOGUE
from jaxtribute._src.addons.verify.comparing import Difference
from jaxtribute._src.addons.verify.depending import give_the_same
from jaxtribute._src.addons.verify.holding import is_rows
from jaxtribute._src.addons.verify.pairing import Runs
from jaxtribute._src.addons.verify.relations import Kind

_CONTEXT = "jd.get_replica_context()"
_OF_A_VALUE = frozenset(
    "local-mean mean-of-means local-total mean-of-sums sum-of-means counted-on-each-replica one-replica "
    "reduced-twice whole-on-each-replica".split()
)
_COUNTED = frozenset({"counted-on-each-replica", "reduced-twice", "whole-on-each-replica"})
"""Patterns of what is the same on all replicas, and added up."""
_EXTREMES = {"reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod", "reduce_and": "all", "reduce_or": "any"}


FOR_EACH_ROW = (
    "let the loss function return a value for each row, which sample_weight=, class_weight= and masks multiply. If it "
    f"has to be one number: {_CONTEXT}.all_reduce('SUM', ...) its sums over the rows"
)
"""Advice for a loss function that returns one number, by which weights of rows are then multiplied."""
OWN_VALUE = (
    "return the replica's own value from a function that apply_gradients is given, such as value_fn or grad_fn: its "
    "results are reduced"
)
"""Advice for such a function that reduces them itself."""


def instead(runs: Runs, pattern: str, number: int, apart: Sequence[Difference], given: bool) -> str:
    """Returns what to write instead; empty where the pattern's own advice fits.

    Args:
      runs: both runs.
      pattern: the pattern's name.
      number: the operation that is blamed.
      apart: what differs.
      given: whether it belongs to a function that an optimizer was given.
    """
    if given and pattern == "reduced-twice":
        return OWN_VALUE
    if given and pattern == "unknown":
        return f"{CATALOGUE[pattern].advice}. And {OWN_VALUE}"
    variables = [one.variable for one in apart if one.variable is not None]
    # Slots may be all that differs, of an optimizer whose update does not depend on the size of gradients.
    learned = any(one.trainable or one.derived for one in variables) or runs.differentiated(number)
    if pattern in _OF_A_VALUE and variables and not learned:
        return _of_a_variable(runs, pattern, number, variables[0])
    if pattern == "extreme-over-batch":
        return _of_an_extreme(runs, number)
    if pattern == "batch-statistics" and runs.relation(number).kind is Kind.SUM:
        part = own_part(runs, number) or "what this replica's rows add up to"
        return (
            f"all-reduce the sums first: {_CONTEXT}.all_reduce('SUM', {part}), and compute with that. In Keras's fit "
            "BatchNormalization(synchronized=True), in Flax BatchNorm(axis_name=jd.REPLICA_AXIS)"
        )
    return ""


def _of_a_variable(runs: Runs, pattern: str, number: int, variable: Variable) -> str:
    """Of a variable that is written, and not trained."""
    name = variable.name.removesuffix(":0")
    relation, counted = runs.relation(number), pattern in _COUNTED
    if is_rows(variable):
        how = {
            Kind.SUM: "'sum': what each replica has is a part of a sum",
            Kind.SAME: "'only_first_replica': all replicas have the same",
            Kind.MEAN: "'mean': each replica has a mean of its rows. For batches that do not divide keep a sum and a "
            "count, both with aggregation='sum'",
        }
        known = how[Kind.SAME] if counted else how.get(relation.kind)
        if known is None:
            return (
                f"make {name} with the aggregation= that makes one value of what each replica has: 'sum' of parts, "
                "'mean' of means, 'only_first_replica' of what is the same on all"
            )
        return f"make {name} with aggregation={known}"
    if counted:
        return (
            f"make {name} with aggregation='only_first_replica': each replica writes the same, such as a number of "
            "steps, which is not reduced"
        )
    if relation.kind is Kind.SUM and pattern in ("one-replica", "mean-of-sums") and _is_added(runs, number):
        return f"make {name} with aggregation='sum': what each replica adds is a part of a sum"
    return give_the_same(variable, own_part(runs, number))


def _is_added(runs: Runs, number: int) -> bool:
    """True if a variable's old value is added to a number, as `assign_add` does."""
    record = runs.record(number)
    return record.place is not None and ".assign_add(" in record.place.text and record.name in ("add", "reduce_sum")


def _of_an_extreme(runs: Runs, number: int) -> str:
    record = runs.record(number)
    if record.name in ("argmax", "argmin"):
        which = record.name
        return (
            f"compare the rows of all replicas: jnp.{which}({_CONTEXT}.all_gather(values, axis=0)) is a place among "
            f"all rows; take what it picks of {_CONTEXT}.all_gather(rows, axis=0)"
        )
    how = _EXTREMES.get(record.name)
    if how is None:
        return ""
    part = whole_part(runs, number) or f"local.{how}()"
    return f"take it over the replicas too: {_CONTEXT}.all_gather({part}[None], axis=0).{how}(axis=0)"
