"""Mixed precision: dtypes by policy, and loss scales that skip what is not finite and adjust, under every strategy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute import precision
from jaxtribute.errors import ArgumentError
from replicas import components, mirrored, one_device, per_replica, variable

MIXED = "params=float32,compute=bfloat16,output=float32"
STRATEGIES = {
    "one device": one_device(0),
    "mirrored": mirrored(2),
    "sharded": jd.FullyShardedStrategy(["CPU:0", "CPU:1"], min_bytes=0),
    "central": jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2"),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MIXED, MIXED),
        ("p=f32", None),
        ("compute=bf16", MIXED),
        (" param = full , compute=half,output=f16", "params=float32,compute=float16,output=float16"),
        ("bfloat16", "params=bfloat16,compute=bfloat16,output=bfloat16"),
        ("compute=int32", None),
        ("compute=what", None),
        ("", None),
    ],
)
def test_policies_from_texts(text: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ArgumentError, match=r"in the precision policy .*HINT"):
            precision.Policy.parse(text)
    else:
        assert str(precision.Policy.parse(text)) == expected
        assert precision.Policy.parse(expected) == precision.Policy.parse(text)


def test_casts_touch_floating_arrays_only() -> None:
    policy = precision.Policy.parse(MIXED)
    v = variable(mirrored(2), np.ones(3, np.float32))
    nest = {"v": v, "labels": np.arange(3), "flag": True, "half": jnp.ones(2, jnp.float16), "name": "x", "n": None}
    cast = policy.to_compute(nest)
    kinds = {name: getattr(leaf, "dtype", type(leaf)) for name, leaf in cast.items()}
    assert kinds == {
        "v": jnp.bfloat16, "labels": np.int64, "flag": bool, "half": jnp.bfloat16, "name": str, "n": type(None),
    }  # fmt: skip
    assert policy.to_output(cast)["v"].dtype == policy.to_params(cast)["half"].dtype == jnp.float32


def test_a_wrapped_function_computes_in_half_precision() -> None:
    seen: list[Any] = []

    def fn(x: Any, *, scale: Any) -> Any:
        seen.extend((x.dtype, scale.dtype))
        return x * scale

    assert precision.Policy.parse("compute=f16").wrap(fn)(jnp.ones(2), scale=jnp.float32(2)).dtype == jnp.float32
    assert seen == [jnp.float16, jnp.float16]


def step_of(strategy: jd.Strategy, v: jd.Variable, optimizer: jd.Optimizer, scale: precision.LossScale) -> Any:
    """A step in float16 whose gradient of `v` is the sum of x; infinite where that leaves float16's range."""
    policy = precision.Policy.parse("compute=float16")

    def replica_step(x: Any) -> Any:
        def loss(x: Any) -> Any:
            values, x = policy.to_compute((v, x))
            return policy.to_output((values[None] * x[:, None]).sum()), {"aux": x.dtype.name}

        (value, aux), grads = scale.value_and_grad(loss, [v], has_aux=True)(x)
        assert aux == {"aux": "float16"}
        assert grads[0].dtype == v.dtype
        optimizer.apply_gradients(grads)
        return value

    return jd.function(lambda x: strategy.reduce("SUM", strategy.run(replica_step, (x,)), axis=None))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_dynamic_scale_skips_shrinks_and_grows(name: str) -> None:
    strategy = STRATEGIES[name]
    with strategy.scope():
        v = jd.Variable(np.zeros(3, np.float32))
        scale = precision.DynamicLossScale(2.0**15, period=2)
        optimizer = jd.Optimizer(optax.sgd(1.0, momentum=0.5), [v], loss_scale=scale)
    assert [x.name for x in optimizer.variables[-2:]] == ["loss_scale:0", "loss_scale/finite_steps:0"]
    step = step_of(strategy, v, optimizer, scale)
    (small,) = strategy.experimental_distribute_dataset([np.full(2, 2.0**-20, np.float32)])
    (huge,) = strategy.experimental_distribute_dataset([np.asarray([1, 4], np.float32)])
    values: list[Any] = []
    for x in (huge, small, small, huge):
        before = v.numpy()
        float(step(x))
        values.append((float(scale.value), bool(np.any(v.numpy() != before))))
    # 4 x 2^15 is beyond float16, whose largest number is 65504.
    assert values[0] == (2.0**14, False)
    assert [changed for _, changed in values[1:3]] == [True, True]
    assert [factor for factor, _ in values[1:]] == [2.0**14, 2.0**15, 2.0**14]
    assert not values[3][1]
    assert np.all(np.isfinite(optimizer.variables[0].numpy()))


def test_with_accumulated_gradients() -> None:
    strategy = STRATEGIES["mirrored"]
    with strategy.scope():
        v = jd.Variable(np.zeros(3, np.float32))
        scale = precision.DynamicLossScale(8.0, period=1)
        optimizer = jd.Optimizer(optax.sgd(1.0), [v], loss_scale=scale, accumulate_steps=2, accumulate_op="SUM")
    step = step_of(strategy, v, optimizer, scale)
    x = per_replica(strategy, [np.full(2, 0.5, np.float32)] * 2)
    step(x)
    assert (v.numpy().tolist(), float(scale.value)) == ([0, 0, 0], 8)
    step(x)
    assert (v.numpy().tolist(), float(scale.value)) == ([-4, -4, -4], 16)


def test_a_static_scale() -> None:
    scale = precision.StaticLossScale(4.0)
    assert scale.variables == ()
    assert repr(scale) == "StaticLossScale(4)"
    scaled = scale.scale({"x": jnp.float16(3), "n": 2})
    assert (float(scaled["x"]), scaled["x"].dtype, scaled["n"]) == (12, jnp.float16, 2)
    assert float(scale.unscale(scaled)["x"]) == 3
    v = variable(mirrored(2), np.float32(3))
    value, grads = scale.value_and_grad(lambda: v * v, v)()
    assert (float(value), float(grads)) == (9, 6)
    optimizer = jd.Optimizer(optax.sgd(1.0), [v], loss_scale=scale)
    optimizer.apply_gradients([np.float32(np.inf)])
    assert components(v) == [3.0, 3.0]


def test_the_scale_never_leaves_its_range() -> None:
    scale = precision.DynamicLossScale(2.0, factor=4.0, period=1, least=1.5)
    assert repr(scale) == "DynamicLossScale(period=1, factor=4, least=1.5)"
    small = scale.adjusted([jnp.float32(2), jnp.int32(3)], jnp.asarray(False))
    assert [float(x) for x in small] == [1.5, 0]
    largest = np.finfo(np.float32).max
    large = scale.adjusted([largest, jnp.int32(0)], jnp.asarray(True))
    assert float(large[0]) == largest


@pytest.mark.parametrize(
    ("options", "named"),
    [({"initial": 0}, "initial is 0"), ({"period": -1}, "period is -1"), ({"factor": 1.0}, "factor is 1.0")],
)
def test_bad_numbers(options: Any, named: str) -> None:
    with pytest.raises(ArgumentError, match=f"{named}.*HINT"):
        precision.DynamicLossScale(**options)
    with pytest.raises(ArgumentError, match="value is -1"):
        precision.StaticLossScale(-1)
