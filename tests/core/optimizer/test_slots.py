"""An optimizer's state: where it is kept, how much of it, and how it is read and written."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from grouped_programs import grouped
from jaxtribute._src.core.optimizer.parameters import Parameters
from jaxtribute._src.core.optimizer.slots import Slots
from jaxtribute._src.core.values.policies.mirrored import MirroredPolicy
from jaxtribute._src.core.values.policies.sharded import ShardedPolicy
from jaxtribute.errors import ArgumentTypeError, ShapeError
from replicas import mirrored, one_device, variable

FOUR = mirrored(4)


def optimizer_of(*shapes: tuple[int, ...], transform: Any = None, shard: Any = True) -> jd.Optimizer:
    variables = [variable(FOUR, np.ones(shape, np.float32), name=f"v{i}") for i, shape in enumerate(shapes)]
    return jd.Optimizer(transform or optax.adam(0.1), variables, shard_update=shard)


def bytes_a_device(v: jd.Variable) -> list[int]:
    return [shard.data.nbytes for shard in v.stored.addressable_shards]


@pytest.mark.parametrize(("shape", "elements"), [((4, 6), 6), ((3, 5), 4), ((4,), 1), ((2, 3, 1, 3), 5)])
def test_slots_take_a_share_of_the_memory(shape: tuple[int, ...], elements: int) -> None:
    count, mu, nu = optimizer_of(shape).variables
    assert bytes_a_device(count) == [4] * 4
    for slot in (mu, nu):
        assert isinstance(slot.policy, ShardedPolicy)
        assert slot.shape == shape
        assert bytes_a_device(slot) == [4 * elements] * 4


def test_small_variables_and_scalars_are_kept_whole() -> None:
    optimizer = optimizer_of((), (3,), (4,))
    kinds = {slot.name: type(slot.policy) for slot in optimizer.variables}
    assert kinds == {
        "count:0": MirroredPolicy, "v0/mu:0": MirroredPolicy, "v1/mu:0": MirroredPolicy,
        "v2/mu:0": ShardedPolicy, "v0/nu:0": MirroredPolicy, "v1/nu:0": MirroredPolicy,
        "v2/nu:0": ShardedPolicy,
    }  # fmt: skip


def test_auto_shards_variables_of_a_mebibyte() -> None:
    optimizer = optimizer_of((512, 512), (512, 511), shard="auto", transform=optax.sgd(0.1, momentum=0.9))
    large, small = optimizer.variables
    assert bytes_a_device(large) == [1 << 18] * 4
    assert bytes_a_device(small) == [512 * 511 * 4] * 4


def test_auto_leaves_two_replicas_as_they_are() -> None:
    v = variable(mirrored(2), np.ones((512, 512), np.float32))
    (slot,) = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [v]).variables
    assert bytes_a_device(slot) == [1 << 20] * 2


def test_auto_leaves_replicas_of_several_devices_as_they_are() -> None:
    v = variable(grouped(4, 2), np.ones((512, 512), np.float32))
    (slot,) = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [v]).variables
    assert bytes_a_device(slot) == [1 << 20] * 8


def test_not_sharded() -> None:
    for slot in optimizer_of((4, 6), shard=False).variables:
        assert isinstance(slot.policy, MirroredPolicy)
    v = variable(one_device(1), np.ones((4, 6), np.float32))
    assert not any(isinstance(slot.policy, ShardedPolicy) for slot in jd.Optimizer(optax.adam(1.0), [v]).variables)


def test_slots_are_read_and_written_whole() -> None:
    slot = optimizer_of((3, 5)).variables[1]
    value = np.arange(15, dtype=np.float32).reshape(3, 5)
    slot.assign(value)
    assert slot.read_value().shape == (3, 5)
    np.testing.assert_array_equal(slot.numpy(), value)
    np.testing.assert_array_equal(np.asarray(slot), value)
    slot.assign_add(jnp.ones((3, 5)))
    slot.assign_sub(2 * np.ones((3, 5), np.float32))
    np.testing.assert_array_equal(slot.numpy(), value - 1)

    @jd.function
    def double() -> None:
        slot.assign(slot.read_value() * 2)

    double()
    np.testing.assert_array_equal(slot.numpy(), 2 * (value - 1))
    np.testing.assert_array_equal(np.asarray(slot.stored), [*(2 * (value - 1)).reshape(-1), 0])


def test_slots_refuse_what_does_not_fit() -> None:
    slot = optimizer_of((3, 5)).variables[1]
    with pytest.raises(ShapeError, match=r"v0/mu:0 has shape \(3, 5\), the assigned value \(5, 3\)"):
        slot.assign(np.ones((5, 3), np.float32))
    with pytest.raises(ShapeError):
        slot.assign_add(np.ones((15,), np.float32))
    with pytest.raises(ArgumentTypeError, match="HINT"):
        slot.assign(jnp.ones((3, 5), jnp.int32))
    assert not slot.numpy().any()


def test_a_written_slot_decides_the_next_update() -> None:
    optimizer = optimizer_of((3, 5), transform=optax.sgd(1.0, momentum=0.5))
    (trace,), (v,) = optimizer.variables, optimizer.trainable_variables
    trace.assign(np.full((3, 5), 4, np.float32))
    jd.function(lambda: FOUR.run(lambda: optimizer.apply_gradients([jnp.ones((3, 5))], "MEAN")))()
    np.testing.assert_allclose(v.numpy(), np.full((3, 5), 1 - 3))
    np.testing.assert_allclose(trace.numpy(), np.full((3, 5), 3))


def test_padding_stays_out_of_sight() -> None:
    """A slot whose padding becomes NaN (0 / 0) is as it should be."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        quotient = jax.tree.map(lambda g, s: s / g, updates, state)
        total = sum(jnp.sum(q) for q in quotient)
        return jax.tree.map(lambda q: 0 * q + total, quotient), quotient

    transform = optax.GradientTransformation(lambda params: jax.tree.map(jnp.ones_like, params), update)
    optimizer = optimizer_of((3, 5), transform=transform)
    jd.function(lambda: FOUR.run(lambda: optimizer.apply_gradients([2 * jnp.ones((3, 5))], "MEAN")))()
    np.testing.assert_allclose(optimizer.variables[0].numpy(), np.full((3, 5), 0.5))
    np.testing.assert_allclose(optimizer.trainable_variables[0].numpy(), np.full((3, 5), 1 + 7.5))


def test_the_state_has_optaxs_structure() -> None:
    optimizer = optimizer_of((3, 5), transform=optax.chain(optax.clip(1.0), optax.adam(0.1)))
    state = optimizer.state
    leaves, tree = jax.tree.flatten(state, is_leaf=lambda leaf: isinstance(leaf, jd.Variable))
    assert tuple(leaves) == optimizer.variables
    assert tree == jax.tree.structure(optax.chain(optax.clip(1.0), optax.adam(0.1)).init([1.0]))
    assert isinstance(state[1][0].mu[0], jd.Variable)


@pytest.mark.parametrize(
    ("transform", "owners"),
    [
        (optax.adam(1.0), [None, 0, 1, 0, 1]),
        (optax.masked(optax.trace(0.9), [False, True]), [1]),
        (optax.partition({"a": optax.trace(0.9), "b": optax.trace(0.5)}, ["b", "a"]), [1, 0]),
        (optax.trace(0.9), [0, 1]),
        (optax.scale(1.0), []),
    ],
)
def test_owners(transform: Any, owners: list[int | None]) -> None:
    variables = [variable(FOUR, np.ones(shape, np.float32)) for shape in [(4, 2), (5,)]]
    state = transform.init([v.numpy() for v in variables])
    parameters = Parameters.of(variables, jax.tree.structure([0, 0]))
    assert [one.owner for one in parameters.belongings(state, transform.init)] == owners


def test_random_keys_are_kept_as_data() -> None:
    optimizer = optimizer_of(
        (3, 5), transform=optax.chain(optax.add_noise(0.1, 0.5, jax.random.key(1)), optax.sgd(0.1))
    )
    assert [slot.dtype for slot in optimizer.variables] == [np.int32, np.uint32]
    (data,) = Slots.arrays_of(jax.random.key(1))
    assert data.tolist() == [0, 1]


def test_optax_is_not_held_to_the_users_promotion_rules() -> None:
    assert jax.config.values["jax_numpy_dtype_promotion"] == "strict"
    optimizer = optimizer_of((2, 2))
    optimizer.apply_gradients([np.ones((2, 2), np.float32)])
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.add(jnp.ones(2), jnp.ones(2, jnp.int32))


class Block(NamedTuple):
    kernel: Any
    bias: Any


NESTS: dict[str, Callable[[], Any]] = {
    "a list": lambda: [named("a", 4, 3), named("b", 4)],
    "a dict": lambda: {"w": named("a", 4, 3), "mu": named("b", 4)},
    "a named tuple": lambda: {"block": Block(named("a", 4, 3), named("b", 4)), "none": None},
}


def named(name: str, *shape: int) -> jd.Variable:
    return variable(FOUR, np.ones(shape, np.float32), name=name)


@pytest.mark.parametrize("nest", NESTS)
def test_slots_are_called_as_in_checkpoints_of_old(nest: str) -> None:
    """Slots have had these names since parameters were handed over as a list: checkpoints find them by name."""
    first, second = ("b", "a") if nest == "a dict" else ("a", "b")
    matrices = optax.partition({True: optax.trace(0.9), False: optax.adam(0.1)}, is_matrix)
    wanted: dict[str, tuple[Any, list[str]]] = {
        "adam": (optax.adam(0.1), ["count", *(f"{v}/{slot}" for slot in ("mu", "nu") for v in (first, second))]),
        "partition": (matrices, ["count", "b/mu", "b/nu", "a/trace"]),
        "factors": (
            optax.scale_by_factored_rms(min_dim_size_to_factor=2),
            ["count", "v_row", "v_row_1", "v_col", "v_col_1", *(("b/v", "v") if first == "b" else ("v", "b/v"))],
        ),
        "hyperparameters": (
            optax.inject_hyperparams(optax.sgd)(learning_rate=0.1, momentum=0.9),
            ["count", "hyperparams", "hyperparams_1", f"{first}/trace", f"{second}/trace"],
        ),
    }
    for transform, names in wanted.values():
        made = jd.Optimizer(transform, NESTS[nest](), shard_update=True)
        assert [slot.name for slot in made.variables] == [f"{name}:0" for name in names]


def is_matrix(params: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.ndim == 2, params)


def test_slots_of_a_parameter_in_no_nest() -> None:
    scalar = variable(FOUR, 1.0, name="s")
    plateau = optax.contrib.reduce_on_plateau()
    names = [slot.name for slot in jd.Optimizer(optax.chain(optax.adam(0.1), plateau), scalar).variables]
    assert names[:4] == ["count:0", "s/mu:0", "s/nu:0", "scale:0"]


def test_owners_in_nests_within_nests() -> None:
    """Paths that end alike, labels that are called as parameters, and parts of a nest."""
    leaf = jax.ShapeDtypeStruct((4,), np.float32)
    nest = {"a": {"x": leaf}, "x": leaf}
    parameters = Parameters.of(jax.tree.leaves(nest), jax.tree.structure(nest))

    def owners(state: Any) -> list[int | None]:
        return [one.owner for one in parameters.belongings(state, lambda params: state)]

    assert owners({"a": nest, "x": nest}) == [0, 1, 0, 1]
    assert owners({"a": {"a": {"x": leaf}, "x": optax.MaskedNode()}, "x": {"a": None, "x": leaf}}) == [0, 1]
    assert owners([{"x": leaf}, {"y": leaf}, jax.ShapeDtypeStruct((), np.int32)]) == [1, None, None]
