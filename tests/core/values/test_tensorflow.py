"""Two replicas' writes to variables come to what TensorFlow 2.21 makes of them, but for what is listed here."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportArgumentType=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from replicas import each_executor, execute, here, mirrored
from values.tensorflow_writes import CASES, START, WRITES, Case, write

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "tensorflow.json").read_text())


def different(case: Case) -> bool:
    """True if `docs/migration.md` says that the write is another here."""
    if case.synchronization == "ON_READ":
        # A replica writes rows of its own; a total of whole numbers is not rounded off.
        return case.method not in WRITES or case.place == "cross"
    if case.place == "replica":
        return case.aggregation == "NONE"  # TensorFlow's copies diverge
    return case.method in ("scatter_min", "scatter_max", "scatter_update")  # code of all replicas says one value


def array(values: list[Any], dtype: str) -> Any:
    return jnp.stack([jnp.asarray(value, jnp.int32) for value in values]).astype(dtype)


def rows(values: Any, indices: Any) -> jd.IndexedSlices:
    return jd.IndexedSlices(values, indices)


def ran(executor: str, strategy: jd.Strategy, case: Case) -> Any:
    """What `record_tensorflow.py` records."""

    def replica() -> None:
        write(case, variable, jnp.asarray(here().replica_id_in_sync_group), array, rows)

    try:
        with strategy.scope():
            variable = jd.Variable(
                array(START, case.dtype), synchronization=case.synchronization, aggregation=case.aggregation
            )
        if case.place == "replica":
            execute(executor, strategy, replica)
        else:
            step = lambda: write(case, variable, 0, array, rows)  # noqa: E731
            (jd.function(step) if executor == "compiled" else step)()
        copies = [np.asarray(copy).tolist() for copy in strategy.experimental_local_results(variable)]
    except jd.errors.JaxtributeError as error:
        kinds = (NotImplementedError, TypeError, ValueError)
        return next(kind.__name__ for kind in kinds if isinstance(error, kind))
    assert variable.stored.dtype == case.dtype
    try:
        return [copies, np.asarray(variable.read_value()).tolist()]
    except jd.errors.VariableError:
        return [copies, "ValueError"]


def test_every_case_is_recorded() -> None:
    assert list(RECORDED) == list(CASES)


@pytest.mark.quick_cases(4)
@each_executor
@pytest.mark.parametrize("place", ["replica", "cross"])
@pytest.mark.parametrize("method", sorted({case.method for case in CASES.values()}))
def test_writes_are_those_of_tensorflow(executor: str, place: str, method: str) -> None:
    strategy = mirrored(2)
    for name, case in CASES.items():
        if case.place == place and case.method == method and not different(case):
            assert ran(executor, strategy, case) == RECORDED[name], name
