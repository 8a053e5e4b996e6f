"""Which operations of a program run where, and in how many stages."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxtribute._src.core.execution.central.placing import Stage, place
from jaxtribute._src.core.jaxprs.making import state_p
from jaxtribute._src.core.values.mesh import AXIS
from replicas import mirrored

MESH = mirrored(2).extended.mesh
V, X = jnp.float32(1.0), jnp.arange(4.0)


def on_replicas(fn: Any, *args: Any) -> Any:
    """`fn` of the first argument split over the replicas and the others whole; reduced, then added to the rest."""

    def step(x: Any, *others: Any) -> Any:
        return lax.psum(fn(x, *others), AXIS)

    specs = (PartitionSpec(AXIS), *(PartitionSpec() for _ in args[1:]))
    return jax.shard_map(step, mesh=MESH.mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)(*args)


def stages(fn: Any, state: list[bool]) -> list[Stage]:
    """The stages of `fn(v, x)`, of which `v` is a central variable and `x` split over the replicas."""
    closed = jax.make_jaxpr(fn)(V, X)
    return place(closed.jaxpr, [True, False], [False, True], state)


def shape(found: list[Stage]) -> list[tuple[bool, list[str]]]:
    return [(stage.on_mesh, [eqn.primitive.name for eqn in stage.eqns]) for stage in found]


def test_a_training_step_is_a_run_and_an_update() -> None:
    def step(v: Any, x: Any) -> Any:
        total = on_replicas(lambda x, v: (x * v).sum(), x, v)
        return v - total * 2, total

    found = stages(step, [True, False])
    assert shape(found) == [(False, []), (True, ["shard_map"]), (False, ["mul", "sub"])]
    assert len(found[1].inputs) == 2
    assert len(found[1].outputs) == 1


def test_without_replicas_everything_is_on_the_parameter_device() -> None:
    found = stages(lambda v, x: (v * 2 + 1, v * 3), [True, False])
    assert [names for on_mesh, names in shape(found) if on_mesh] == [[]]


def test_what_depends_on_variables_only_goes_up_computed() -> None:
    found = stages(lambda v, x: (on_replicas(lambda x, v: (x * v).sum(), x, v * 2),), [False])
    assert shape(found)[:2] == [(False, ["mul"]), (True, ["shard_map"])]


def test_split_values_stay_on_the_mesh() -> None:
    found = stages(lambda v, x: (v + x.sum(), v), [True, True])
    assert shape(found)[1:] == [(True, ["reduce_sum", "add"]), (False, [])]


def test_two_runs_take_turns_with_two_updates() -> None:
    def step(v: Any, x: Any) -> Any:
        first = state_p.bind(v + on_replicas(lambda x, v: (x * v).sum(), x, v))
        return first + on_replicas(lambda x, v: (x * v).sum(), x, first)

    found = stages(lambda v, x: (step(v, x),), [True])
    places = [(on_mesh, names) for on_mesh, names in shape(found) if names]
    assert places == [
        (True, ["shard_map"]),
        (False, ["add", "jd_state"]),
        (True, ["shard_map"]),
        (False, ["add"]),
    ]
    assert [stage.on_mesh for stage in found] == [False, True, False, True, False]


def test_an_update_that_nobody_waits_for_comes_last() -> None:
    def step(v: Any, x: Any) -> Any:
        return v + 1, on_replicas(lambda x: x.sum(), x)

    found = stages(step, [True, False])
    assert shape(found) == [(False, []), (True, ["shard_map"]), (False, ["add"])]


def test_results_of_the_mesh_stay_there() -> None:
    found = stages(lambda v, x: (v, on_replicas(lambda x: x.sum(), x) * 2), [True, False])
    assert shape(found)[1] == (True, ["shard_map", "mul"])
    assert shape(found)[2] == (False, [])
