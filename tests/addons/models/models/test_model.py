"""`jd.Model`: what becomes of a model's arrays, of what calls change in it, and of random numbers, on any replicas."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError, TraceError, VariableError
from replicas import each_executor, execute, mirrored, one_device

ONES = np.ones((4, 3), np.float32)


def made(strategy: jd.Strategy, model: Any, *args: Any, **options: Any) -> jd.Model:
    with strategy.scope():
        return jd.Model(model, *args, **options)


def batch(strategy: jd.Strategy, rows: int, width: int = 3) -> Any:
    """Rows 0, 1, 2, ... times 1, over the replicas."""
    whole = np.arange(rows, dtype=np.float32)[:, None] * np.ones((1, width), np.float32)
    (given,) = strategy.experimental_distribute_dataset([whole])
    return given


class Affine(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.full((3,), 2.0, jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros(()))
        self.calls = nnx.RngCount(jnp.zeros((), jnp.uint32))

    def __call__(self, x: Any, *, write: bool = True) -> Any:
        if write:
            self.mean.set_value(x.mean())
            self.calls.set_value(self.calls.get_value() + jnp.uint32(1))
        return x * self.w.get_value()[None]


class Custom(nnx.Variable[Any]):
    """A type of variable that the library does not know."""


class Strange(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.ones(3))
        self.seen = Custom(jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        self.seen.set_value(x.sum())
        return x

    def grow(self) -> None:
        self.more = nnx.Param(jnp.ones(1))


def test_the_arrays_of_a_module_become_variables_by_their_kind() -> None:
    model = made(mirrored(2), Affine())
    found = {variable.name: (variable.trainable, variable.aggregation.name) for variable in model.variables}
    assert found == {
        "w:0": (True, "NONE"),
        "mean:0": (False, "MEAN"),
        "calls:0": (False, "ONLY_FIRST_REPLICA"),
    }
    assert model.trainable_variables == (model.parameters["w"],)


@pytest.mark.quick_cases(1)
@each_executor
@pytest.mark.parametrize("rows", [8, 5])
def test_statistics_are_the_mean_over_the_replicas_that_have_examples(executor: str, rows: int) -> None:
    strategy = mirrored(4)
    model = made(strategy, Affine())
    execute(executor, strategy, model, batch(strategy, rows))
    groups = [[0, 1], [2, 3], [4, 5], [6, 7]] if rows == 8 else [[0, 1], [2, 3], [4]]
    assert_allclose(model.value.mean.get_value(), np.mean([np.mean(group) for group in groups]), rtol=1e-6)
    assert int(model.value.calls.get_value()) == 1


@each_executor
def test_a_model_follows_its_writes_within_a_step_and_gradients_have_its_structure(executor: str) -> None:
    strategy = mirrored(2)
    model = made(strategy, Affine(), optax.sgd(0.5))

    def step(x: Any) -> Any:
        first, gradients = jd.value_and_grad(lambda: jnp.sum(model(x)), model)()
        assert jax.tree.structure(gradients) == jax.tree.structure({"w": 0})
        model.apply_gradients(gradients)
        return first, jnp.sum(model(x))

    first, second = execute(executor, strategy, step, batch(strategy, 2, 3))
    assert [float(value) for value in first.values] == [0, 6]  # row 1 has three ones, times 2
    assert [float(value) for value in second.values] == [0, 6 - 3 * 0.5]
    assert int(model.value.calls.get_value()) == 2


def test_a_jd_function_takes_it_as_an_argument_and_sees_what_training_made_of_it() -> None:
    model = made(jd.get_strategy(), Affine())

    @jd.function
    def call(model: jd.Model, x: Any) -> Any:
        return model(x, write=False)

    assert float(call(model, ONES).sum()) == 24
    model.parameters["w"].assign(np.zeros(3))
    assert float(call(model, ONES).sum()) == 0
    assert call.experimental_get_tracing_count() == 1


def test_attributes_that_are_no_variables_are_as_before_for_the_next_call() -> None:
    model = made(one_device(1), nnx.Dropout(0.5, rngs=nnx.Rngs(0)))

    def evaluate(module: Any, x: Any) -> Any:
        module.set_attributes(deterministic=True)
        return module(x)

    assert float(model.apply(evaluate, ONES).sum()) == ONES.sum()
    assert float(model(ONES).sum()) != ONES.sum()


@pytest.mark.quick_cases(1)
@each_executor
def test_dropout_of_nnx_differs_between_replicas_and_calls(executor: str) -> None:
    strategy = mirrored(2)
    model = made(strategy, nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    ones = strategy.place(np.ones((64,), np.float32))
    masks = [np.stack(execute(executor, strategy, model, ones).values) for _ in range(2)]
    rows = np.concatenate(masks)
    assert len({row.tobytes() for row in rows}) == 4
    other = made(strategy, nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    again = np.stack(execute(executor, strategy, other, ones).values)
    assert_array_equal(again, masks[0])


@pytest.mark.quick_cases(1)
@each_executor
def test_keys_of_examples_do_not_depend_on_the_replicas(executor: str) -> None:
    drawn: list[Any] = []
    for replicas in (1, 2, 4):
        strategy = mirrored(replicas) if replicas > 1 else one_device(0)
        model = made(strategy, {"w": jnp.ones(1)}, rng=3)

        def draw(x: Any, model: jd.Model = model) -> Any:
            return jax.vmap(jax.random.uniform)(model.keys(x.shape[0]))

        given = batch(strategy, 5)
        both = [execute(executor, strategy, draw, given) for _ in range(2)]
        drawn.append([np.concatenate(strategy.experimental_local_results(one)) for one in both])
    assert_array_equal(drawn[1], drawn[0])
    assert_array_equal(drawn[2], drawn[0])
    assert len(np.unique(drawn[0])) == 10


@each_executor
def test_each_replica_gets_a_key_of_its_own(executor: str) -> None:
    strategy = mirrored(2)
    model = made(strategy, {"w": jnp.ones(1)}, rng=jax.random.key(3))
    draws = [execute(executor, strategy, lambda: jax.random.uniform(model.key())).values for _ in range(2)]
    assert len({float(value) for values in draws for value in values}) == 4


def test_a_state_of_equinox_is_assigned_whole() -> None:
    strategy = mirrored(2)
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, axis_name="batch", mode="ema", momentum=0.5)
    model = made(strategy, norm, state=state)

    @jd.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            call = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            result, model.state = call(x, model.state)
            return result

        return strategy.run(replica, (x,))

    with jax.numpy_dtype_promotion("standard"):
        step(batch(strategy, 8))
        first = [np.asarray(leaf) for leaf in jax.tree.leaves(model.state)]
        wanted = [
            eqx.filter_jit(jax.vmap(norm, axis_name="batch", in_axes=(0, None), out_axes=(0, None)))(
                jnp.asarray(part), state
            )[1]
            for part in np.split(np.arange(8, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32), 2)
        ]
    for leaf, *parts in zip(first, *map(jax.tree.leaves, wanted), strict=True):
        assert_allclose(leaf, np.mean(parts, axis=0), rtol=1e-6)
    with pytest.raises(ShapeError, match="return all of a state"):
        model.state = {"another": jnp.ones(3)}


@pytest.mark.parametrize("precision", [None, "compute=bfloat16"])
def test_a_value_is_assigned_whole(precision: str | None) -> None:
    tree = {"w": np.ones(3, np.float32), "n": np.int32(1)}
    model = made(mirrored(2), tree, optimizer=optax.sgd(0.5), precision=precision)
    model.value = jax.tree.map(lambda leaf: leaf * 2, model.value)
    model.minimize(lambda x: model.value["w"].sum() * x, 2.0)
    assert_array_equal(np.asarray(model.parameters["w"]), np.full(3, 1.0, np.float32))
    assert model.value["n"] == 2
    for wrong, error in (({"w": 1.0}, ShapeError), ({"w": ONES, "n": 3}, VariableError)):
        with pytest.raises(error, match="HINT"):
            model.value = wrong
    assert_array_equal(np.asarray(model.parameters["w"]), np.full(3, 1.0, np.float32))


def test_a_value_of_a_module_is_assigned_with_its_keys() -> None:
    model, other = (made(one_device(0), nnx.Dropout(0.5, rngs=nnx.Rngs(seed))) for seed in (0, 1))
    model.value = other.value
    assert_array_equal(np.asarray(model(ONES)), np.asarray(other(ONES)))


def test_a_state_that_differs_between_replicas_where_it_may_not_is_an_error() -> None:
    strategy = mirrored(2)
    model = made(strategy, {"w": jnp.ones(1)}, state={"rows": jnp.zeros((), jnp.int32)})

    def replica(x: Any) -> None:
        model.state = {"rows": jnp.sum(x).astype(jnp.int32)}

    step = jd.function(lambda x: strategy.run(replica, (x,)))
    with pytest.raises(VariableError, match="state/rows:0 would get a different value on each of 2 replicas"):
        step(batch(strategy, 4))


def test_precision_casts_parameters_inputs_and_results() -> None:
    model = made(mirrored(2), eqx.nn.Linear(3, 2, key=jax.random.key(0)), precision="compute=bfloat16")
    dtypes: list[Any] = []

    def replica(x: Any) -> Any:
        def loss() -> Any:
            dtypes.append(model.value.weight.dtype)
            result = jax.vmap(model)(x)
            dtypes.append(result.dtype)
            return result.sum()

        return jd.grad(loss, model)().weight

    gradient = jd.function(lambda x: model.variables[0].distribute_strategy.run(replica, (x,)))(batch(mirrored(2), 4))
    assert dtypes == [jnp.bfloat16, jnp.float32]
    assert gradient.values[0].dtype == jnp.float32


def test_modules_with_a_type_of_their_own_are_told_beside_precision() -> None:
    class Words(nnx.Module):
        def __init__(self, **options: Any) -> None:
            self.table = nnx.Embed(5, 3, rngs=nnx.Rngs(0), **options)
            self.out = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

        def __call__(self, words: Any) -> Any:
            return self.out(self.table(words))

    with pytest.warns(
        UserWarning, match=r"^table of the Words compute in float32 .*HINT: make them with dtype=bfloat16"
    ):
        wide = made(mirrored(2), Words(), precision="compute=bfloat16,output=bfloat16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short = made(mirrored(2), Words(dtype=jnp.bfloat16), precision="compute=bfloat16,output=bfloat16")
        made(mirrored(2), Words())
    # The warning is true: the embedding's own type decides.
    with jax.numpy_dtype_promotion("standard"):
        programs = [str(jax.make_jaxpr(model)(jnp.zeros(4, int))) for model in (wide, short)]
    assert ["f32[4,2] = dot_general" in program for program in programs] == [True, False]


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("inner", [False, True])
def test_a_list_of_gradients_is_not_taken_in_the_order_of_sorted_names(kind: Any, inner: bool) -> None:
    """JAX sorts the names of a dictionary; the user's list may be in the order of its items."""
    params: Any = {"w": jnp.zeros(2), "b": jnp.zeros(2)}
    model = jd.Model([params] if inner else params, optax.sgd(1.0))
    grads = [jnp.full(2, 1.0), jnp.full(2, 5.0)]
    with pytest.raises(ArgumentError, match=r"a list of gradients.*sorts by name.*HINT"):
        model.apply_gradients(kind(grads))
    assert [float(v.numpy()[0]) for v in model.trainable_variables] == [0, 0]
    model.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    nest: Any = {"b": grads[1], "w": grads[0]}
    model.apply_gradients([nest] if inner else nest)
    assert sorted(float(v.numpy()[0]) for v in model.trainable_variables) == [-6, -6]
    ordered = jd.Model({"b": jnp.zeros(2), "w": jnp.zeros(2)}, optax.sgd(1.0))
    ordered.apply_gradients(kind(grads))
    assert {name: float(value[0]) for name, value in ordered.value.items()} == {"b": -1, "w": -5}


def test_accumulated_gradients_make_one_update() -> None:
    model = made(mirrored(2), Affine(), optax.sgd(1.0), accumulate_steps=2)

    @jd.function
    def step(x: Any) -> Any:
        return mirrored(2).run(model.minimize, (lambda x: jnp.sum(model(x)), x))

    step(batch(mirrored(2), 2))
    assert model.parameters["w"].numpy().tolist() == [2, 2, 2]
    step(batch(mirrored(2), 2))
    assert model.parameters["w"].numpy().tolist() == [1, 1, 1]


def test_pictures_and_copies() -> None:
    strategy = mirrored(2)
    model = made(strategy, Affine(), optax.adam(1e-3))
    names = [variable.name for variable in model.variables]
    assert {"w:0", "mean:0", "w/mu:0", "w/nu:0"} <= set(names)
    assert "mean" in str(strategy.visualize({"model": model}))
    twin = copy.deepcopy(model)
    twin.parameters["w"].assign(np.zeros(3))
    assert float(twin.value.w.get_value().sum()) == 0
    assert float(model.value.w.get_value().sum()) == 6


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_checkpoint_holds_all_of_it(replicas: int, tmp_path: Path) -> None:
    model = made(mirrored(2), Affine(), optax.adam(1e-3), rng=5)
    mirrored(2).run(model.minimize, (lambda x: jnp.sum(model(x)), batch(mirrored(2), 4)))
    model.key()
    path = jd.Checkpoint(model=model).save(tmp_path / "model", block=True)
    text = (Path(path) / "jaxtribute.json").read_text()
    assert '"model.w"' in text
    assert '"model.rng.count"' in text
    assert '"model.optimizer.w.mu"' in text
    other = made(mirrored(replicas) if replicas > 1 else one_device(0), Affine(), optax.adam(1e-3), rng=6)
    jd.Checkpoint(model=other).restore(path).assert_consumed()
    for old, new in zip(model.variables, other.variables, strict=True):
        assert_array_equal(old.numpy(), new.numpy())
    keys = [np.asarray(jax.random.key_data(one.key())) for one in (model, other)]
    assert_array_equal(keys[0], keys[1])


# What is refused.


def test_a_variable_of_an_unknown_type_may_be_written_by_one_replica_only() -> None:
    model = made(one_device(0), Strange())
    model(ONES)
    assert float(model.value.seen.get_value()) == 12
    strategy = mirrored(2)
    model = made(strategy, Strange())
    with pytest.raises(VariableError, match=r"seen:0 is an array that steps only read.*2 replicas"):
        strategy.run(model, (batch(strategy, 2),))


def test_new_variables_of_a_module() -> None:
    model = made(one_device(0), Strange())
    with pytest.raises(VariableError, match=r"has added the variables .*more.*HINT: take what"):
        model.apply(lambda module: module.grow())


def test_a_change_inside_a_transformation() -> None:
    model = made(one_device(0), Affine())
    with pytest.raises(TraceError, match="inside a JAX transformation"):
        jax.vmap(model)(ONES[:, None])


REFUSED = [
    (lambda: jd.Model(lambda x: x), ArgumentTypeError, "holds no arrays"),
    (lambda: jd.Model({"w": 1.0}), ArgumentTypeError, "is the number 1.0, which could not be trained"),
    (lambda: jd.Model({"w": ONES}, accumulate_steps=2), ArgumentError, "are for an optimizer"),
    (lambda: jd.Model({"w": ONES}, rng=cast("Any", "seed")), ArgumentTypeError, "rng is 'seed'"),
    (lambda: jd.Model({"w": ONES}, state={"k": jax.random.key(0)}), ArgumentTypeError, "give random keys as rng="),
    (lambda: jd.Model({"w": ONES}).key(), ArgumentError, "without random numbers"),
    (lambda: jd.Model({"w": ONES}).apply_gradients({"w": ONES}), ArgumentError, "has no optimizer"),
    (lambda: jd.Model(eqx.nn.BatchNorm(3, "batch", mode="ema")), ArgumentError, "make_with_state"),
    (lambda: jd.Model(nnx.eval_shape(lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(0)))), ArgumentError, "pass rng="),
    (lambda: setattr(jd.Model({"w": ONES}), "state", {}), ArgumentError, "without a state"),
]


@pytest.mark.parametrize(("make", "error", "text"), REFUSED, ids=[text for _, _, text in REFUSED])
def test_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


class Adapted(nnx.Module):
    """A layer with an adapter."""

    def __init__(self) -> None:
        self.base = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.adapter = nnx.LoRA(3, 2, 3, rngs=nnx.Rngs(1))

    def __call__(self, x: Any) -> Any:
        return self.base(x) + self.adapter(x)


def test_wrt_of_nnx_trains_what_the_filter_selects() -> None:
    model = made(mirrored(2), Adapted(), optax.sgd(0.1), wrt=nnx.LoRAParam, precision="compute=bfloat16")
    module = Adapted()
    wanted = nnx.to_pure_dict(nnx.state(module, nnx.LoRAParam))
    assert jax.tree.map(jnp.shape, model.parameters) == jax.tree.map(jnp.shape, wanted)
    # What is frozen is cast as what is trained.
    assert jax.tree.leaves(model.apply(lambda module: nnx.state(module, nnx.Param)))[0].dtype == jnp.bfloat16
    model.minimize(lambda: jnp.sum(model(jnp.ones((1, 3))) ** 2).astype(jnp.float32))
    before = dict(made(mirrored(2), Adapted()).named_variables())
    moved = {path: bool((v.numpy() != before[path].numpy()).any()) for path, v in model.named_variables()}
    assert {path[-1] for path in moved if path[0] == "adapter" and moved[path]} == {"lora_b"}  # a's gradient is zero
    assert not any(moved[path] for path in moved if path[0] == "base")


def test_wrt_of_a_nest_is_as_equinox_partitions() -> None:
    module = eqx.nn.MLP(3, 3, 4, 1, key=jax.random.key(0))
    last = eqx.tree_at(lambda m: m.layers[-1].weight, jax.tree.map(lambda _: False, module), replace=True)
    model = made(mirrored(2), module, optax.sgd(0.1), wrt=last)
    trained, _ = eqx.partition(module, last)
    assert jax.tree.structure(model.value.layers) == jax.tree.structure(module.layers)
    assert jax.tree.map(jnp.shape, model.parameters) == jax.tree.map(jnp.shape, trained)
    assert [v.name for v in model.trainable_variables] == ["layers/1/weight:0"]
    matrices = made(mirrored(2), {"a": np.ones((2, 2)), "b": np.ones(2)}, wrt=lambda leaf: leaf.ndim == 2)
    assert list(matrices.trainable_variables) == [matrices.parameters["a"]]
    with pytest.raises(ArgumentTypeError, match=r"wrt is not structured as the model.*HINT"):
        jd.Model({"a": np.ones(2)}, wrt={"b": True})
    with pytest.raises(ArgumentError, match=r"selects no floating array.*HINT"):
        jd.Model({"a": np.ones(2)}, wrt=False)


def test_the_frozen_half_of_a_module_is_a_second_model() -> None:
    strategy = mirrored(2)
    module = eqx.nn.MLP(3, 3, 4, 1, key=jax.random.key(0))
    last = eqx.tree_at(lambda m: m.layers[-1].weight, jax.tree.map(lambda _: False, module), replace=True)
    trained, static = eqx.partition(module, last)
    params = made(strategy, trained, optax.sgd(0.1))
    with pytest.raises(VariableError, match=r"static = jd\.Model\(static\), and equinox\.combine\(params\.value"):
        jd.function(lambda x: strategy.run(lambda: eqx.combine(params.value, static)(x)))(jnp.ones(3))
    static = made(strategy, static)
    call = jd.function(lambda x: strategy.run(lambda: eqx.combine(params.value, static.value)(x)))
    assert_allclose(call(jnp.ones(3)).numpy(), module(jnp.ones(3)), rtol=1e-6)


class Wrapped(nnx.Module):
    """A layer within a transformation of Flax, which hands all of its variables back as new arrays."""

    def __init__(self, transform: Any, *, decays: bool = False) -> None:
        self.layer, self._transform, self._decays = Affine(), transform, decays

    def __call__(self, x: Any) -> Any:
        def call(layer: Affine, x: Any) -> Any:
            if self._decays:
                layer.w.set_value(layer.w.get_value() * jnp.float32(0.9))
            return layer(x)

        return self._transform(call)(self.layer, x)


@pytest.mark.parametrize("transform", [nnx.remat, nnx.jit], ids=["remat", "jit"])
@each_executor
def test_what_a_transformation_of_flax_hands_back_is_not_changed(transform: Any, executor: str) -> None:
    found: list[Any] = []
    for strategy in (one_device(0), mirrored(2), jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0)):
        model = made(strategy, Wrapped(transform), optax.sgd(0.1))

        def loss(x: Any, model: Any = model) -> Any:
            return (model(x) ** 2).sum() / 5

        execute(executor, strategy, model.minimize, loss, batch(strategy, 5))
        found.append(np.asarray(model.value.layer.w.get_value()))
    assert_allclose(found[1:], [found[0]] * 2, rtol=1e-6)
    assert not np.allclose(found[0], 2)
