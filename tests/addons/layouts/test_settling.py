"""The automatic layout: by shape as variables are made, by the first program that computes with them then."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import jaxtribute as jd
import layout_models
from jaxtribute._src.addons.layouts import settling
from jaxtribute._src.addons.layouts.judging import laid_out
from jaxtribute.errors import ArgumentError

WIDE = 128


def strategy(kind: Any = jd.MirroredStrategy, layout: Any = "auto", replicas: int = 1) -> Any:
    options: dict[str, Any] = {"min_bytes": 0} if kind is jd.FullyShardedStrategy else {}
    devices = [f"CPU:{i}" for i in range(2 * replicas)]
    return kind(devices, devices_per_replica=2, layout=layout, **options)


def spec(variable: Any) -> Any:
    return variable.stored.sharding.spec


def quick() -> Any:
    """An automatic layout that compiles one program: the pairs."""
    return jd.experimental.AutomaticLayout(tries=1)


def test_a_large_variable_is_split_as_it_is_made_and_a_small_one_is_whole() -> None:
    with strategy().scope():
        large = jd.Variable(np.zeros((3, WIDE, 60), np.float32))
        small = jd.Variable(np.zeros((4, 4), np.float32))
        odd = jd.Variable(np.zeros((75, 75), np.float32))
    assert spec(large) == PartitionSpec(None, "model")
    assert spec(small) == spec(odd) == PartitionSpec()


@pytest.mark.slow
def test_the_first_step_lays_out_variables() -> None:
    auto = strategy(layout=quick())
    step, batch, variables = layout_models.build("MLP", auto, optax.adam(0.1))
    alone, whole, others = layout_models.build("MLP", jd.OneDeviceStrategy("CPU:0"), optax.adam(0.1))
    assert auto.extended.layouts.is_pending(variables["w1"])
    assert float(step(batch)) == pytest.approx(float(alone(whole)), rel=1e-5)
    for name, variable in variables.items():
        np.testing.assert_allclose(variable.numpy(), others[name].numpy(), rtol=1e-4, atol=1e-5)
    assert variables["w1"].policy.layout == (None, "model")
    assert variables["w2"].policy.layout == ("model",)
    assert not auto.extended.layouts.is_pending(variables["w1"])
    step(batch)
    assert spec(variables["w1"]) == PartitionSpec(None, "model")  # the program gives it back where it was


@pytest.mark.slow
def test_variables_that_replicas_share_lie_over_all_devices() -> None:
    auto = strategy(jd.FullyShardedStrategy, quick(), 2)
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=shape).astype(np.float32) for shape in ((WIDE, 64), (64, WIDE)))
    with auto.scope():
        up, down = jd.Variable(first, name="up"), jd.Variable(second, name="down")
        odd, small = jd.Variable(np.zeros(WIDE - 1, np.float32), name="odd"), jd.Variable(np.zeros(64, np.float32))
        optimizer = jd.Optimizer(optax.adam(0.1), [up, down, odd, small])
    assert up.policy.layout == ("model",)

    @jd.function
    def step() -> Any:
        def train() -> Any:
            def loss() -> Any:
                hidden = jnp.tanh(jnp.ones((2, WIDE)) @ up + jnp.asarray(small)[None])
                return jnp.sum(hidden @ down) + jnp.sum(jnp.asarray(odd))

            value, grads = jd.value_and_grad(loss, [up, down, odd, small])()
            optimizer.apply_gradients(grads)
            return value

        return auto.reduce("MEAN", auto.run(train), axis=None)

    expected = float(np.sum(np.tanh(np.ones((2, WIDE)) @ first) @ second))
    assert float(step()) == pytest.approx(expected, rel=1e-4)
    assert up.policy.layout == (None, "model")
    assert down.policy.layout == small.policy.layout == ("model",)
    assert "a piece on each device" in str(auto.extended.layouts)
    for variable in (up, down, odd, small, *(slot for slot in optimizer.variables if slot.shape)):
        assert variable.stored.addressable_shards[0].data.size == -(-variable.size // 4)
    values = up.numpy()
    for layout in ((), ("model",), (None, "model")):  # whichever the choice, the cut among the replicas can stay
        up.lay_out(laid_out(up.policy, layout))
        assert up.stored.addressable_shards[0].data.size == up.size // 4
        np.testing.assert_array_equal(up.numpy(), values)


def test_slots_follow_their_variables() -> None:
    auto = strategy(layout=quick())
    with auto.scope():
        up, down = (jd.Variable(np.ones(shape, np.float32), name=str(shape)) for shape in ((4, 8), (8, 4)))
        optimizer = jd.Optimizer(optax.adam(0.1), [up, down])

    @jd.function
    def step() -> None:
        def train() -> None:
            loss = jd.value_and_grad(lambda: jnp.sum(jnp.tanh(jnp.ones((2, 4)) @ up) @ down), [up, down])
            optimizer.apply_gradients(loss()[1])

        auto.run(train)

    step()
    layouts = [slot.policy.layout for slot in optimizer.variables if slot.shape]
    assert layouts == [(None, "model"), ("model",)] * 2


def test_a_layout_of_its_own_stays() -> None:
    auto = strategy(layout=quick())
    with auto.scope():
        fixed = jd.Variable(np.ones((4, 8), np.float32), name="fixed", layout=("model",))
        free = jd.Variable(np.ones((8, 4), np.float32), name="free")
    step = jd.function(lambda: auto.run(lambda: jnp.ones((2, 4)) @ fixed @ free))
    np.testing.assert_array_equal(step(), np.full((2, 4), 32))
    assert fixed.policy.layout == ("model",)
    assert not auto.extended.layouts.is_pending(free)


def test_a_function_that_only_writes_leaves_them_by_shape_for_good() -> None:
    auto = strategy(layout=quick())
    with auto.scope():
        w = jd.Variable(np.ones((WIDE, WIDE), np.float32), name="w")
    jd.function(lambda: w.assign(w * np.float32(2)))()
    assert not auto.extended.layouts.is_pending(w)
    jd.function(lambda: auto.run(lambda: jnp.ones((2, WIDE)) @ w))()
    assert w.policy.layout == (None, "model")


def test_the_choice_is_a_map_with_reasons_that_can_be_kept(tmp_path: Any) -> None:
    plain = strategy(layout=None)
    step, batch, variables = layout_models.build("MLP", plain)
    before = {name: variable.numpy() for name, variable in variables.items()}
    found = jd.experimental.automatic_layout(step, batch, tries=2)
    assert found.find("w1") == (None, "model")
    assert found.find("b1") == found.find("w2") == ("model",)
    assert found.find("w11") == ()
    text = str(found)
    assert "8 x 32" in text
    assert "split by columns, in which w2 takes its parts" in text
    for name, variable in variables.items():
        np.testing.assert_array_equal(variable.numpy(), before[name])
        assert variable.policy.layout == ()
    found.save(tmp_path / "layout.json")
    again = jd.LayoutMap.load(tmp_path / "layout.json")
    assert dict(again) == dict(found)
    assert str(again) == text
    with strategy(layout=again).scope():
        assert spec(jd.Variable(np.zeros((8, 32)), name="w1")) == PartitionSpec(None, "model")


def two_layers(on: Any, *names: str | None) -> tuple[Any, Any]:
    """Two matrices of such names, split by columns and then by rows, and a function that multiplies by both."""
    with on.scope():
        up = jd.Variable(np.ones((WIDE, 2 * WIDE), np.float32), name=names[0])
        down = jd.Variable(np.ones((2 * WIDE, WIDE), np.float32), name=names[1])
    return jd.function(lambda: on.run(lambda: (jnp.ones((2, WIDE)) @ up) @ down)), (up, down)


@pytest.mark.parametrize("names", [(None, None), ("kernel", "kernel"), ("up", "down")])
def test_names_that_do_not_tell_variables_apart_are_not_kept(names: tuple[Any, Any], tmp_path: Any) -> None:
    auto = strategy(layout=quick())
    step, (up, down) = two_layers(auto, *names)
    apart = names[0] != names[1]
    first = jd.experimental.automatic_layout(step, tries=1)
    step()
    for found in (first, auto.extended.layouts):
        assert set(found) == ({"^up$", "^down$"} if apart else set())
        if apart:
            found.save(tmp_path / "layout.json")
            continue
        assert "several variables, which lie differently" in str(found)
        with pytest.raises(ArgumentError, match=r"several variables are called .* HINT: give each"):
            found.save(tmp_path / "layout.json")
    assert (up.policy.layout, down.policy.layout) == ((None, "model"), ("model",))


def test_names_that_another_program_has_used_are_not_kept() -> None:
    auto = strategy(layout=quick())
    step, _ = two_layers(auto, "up", "down")
    other, _ = two_layers(auto, "down", "other")
    step()
    assert set(auto.extended.layouts) == {"^up$", "^down$"}
    other()
    assert set(auto.extended.layouts) == {"^up$", "^other$"}
    assert auto.extended.layouts.shared == {"^down$"}


@pytest.mark.slow
def test_a_limit_that_the_whole_model_meets_leaves_it_whole() -> None:
    alone = strategy(layout=None)
    step, batch, _ = layout_models.build("MLP", alone)
    found = jd.experimental.automatic_layout(step, batch, memory_limit=1 << 30)
    assert set(found.values()) == {()}  # nothing moves then


def held(variables: Any) -> int:
    """Bytes on the fullest device."""
    found: dict[Any, int] = {}
    for variable in variables:
        for shard in variable.stored.addressable_shards:
            found[shard.device] = found.get(shard.device, 0) + shard.data.nbytes
    return max(found.values())


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize("kind", [jd.MirroredStrategy, jd.FullyShardedStrategy])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_limit_that_nothing_meets_is_told(kind: Any, replicas: int) -> None:
    def trained(limit: int) -> Any:
        auto = strategy(kind, jd.experimental.AutomaticLayout(memory_limit=limit, tries=6), replicas)
        step, batch, variables = layout_models.build("MLP", auto, optax.adam(0.1))
        step(batch)
        return auto, variables

    auto, variables = trained(1 << 30)  # all of them fit
    most = max(one.memory for one in auto.extended.layouts.tried)
    # Slots lie as their variables do; those of Adam take twice as much, and its count of steps 4 bytes.
    frugal, variables = trained(round(min(one.memory for one in auto.extended.layouts.tried)))
    least = 3 * held(variables.values()) + 4
    assert frugal.extended.layouts.tried
    assert least < most
    with pytest.raises(ArgumentError, match=r"memory_limit is 9, 9 B on each device, and variables .* alone .*HINT"):
        trained(9)
    with pytest.raises(ArgumentError, match=r"split over 2 devices as far as they can be. HINT: give replicas more"):
        trained(least - 1)
    with pytest.warns(UserWarning, match=r"no layout fits of the \d+ .* memory_limit=\d+ allows .* needs .*HINT"):
        trained(least)


def test_a_device_that_holds_no_layout_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_memory_of", lambda mesh: 1000)
    auto = strategy(layout=quick())
    step, batch, _ = layout_models.build("MLP", auto)
    with pytest.warns(UserWarning, match=r"no layout fits of the 1 .*: a device has 1.0 KB, and .* needs .*HINT"):
        step(batch)


def test_a_step_without_groups_is_refused() -> None:
    step, batch, _ = layout_models.build("MLP", jd.OneDeviceStrategy("CPU:0"))
    with pytest.raises(ArgumentError, match=r"no variable of replicas of several devices.*HINT"):
        jd.experimental.automatic_layout(step, batch)


@pytest.mark.parametrize("options", [{"tries": 0}, {"memory_limit": 0}])
def test_settings_that_make_no_sense(options: Any) -> None:
    with pytest.raises(ArgumentError, match="HINT"):
        jd.experimental.AutomaticLayout(**options)


@pytest.mark.slow
def test_pictures_show_the_layout() -> None:
    auto = strategy(layout=quick())
    step, batch, variables = layout_models.build("MLP", auto)
    step(batch)
    text = str(auto.visualize(list(variables.values())))
    assert "0:16" in text
    assert "16:32" in text


def test_jax_is_not_asked_where_replicas_have_one_device() -> None:
    one = jd.MirroredStrategy(["CPU:0", "CPU:1"], layout="auto")
    with one.scope():
        w = jd.Variable(np.ones((WIDE, WIDE), np.float32))
    jd.function(lambda: one.run(lambda: jnp.ones((2, WIDE)) @ w))()
    layouts: Any = one.extended.layouts
    assert jax.tree.leaves(layouts.tried) == []
    assert w.policy.layout == ()


def test_a_long_search_says_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([100.0, 104.0, 106.0, 107.0, 112.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    progress = settling.Progress(24)
    for _ in range(4):
        progress.compiled()
    how, *told = capsys.readouterr().err.splitlines()
    assert 'HINT: strategy.extended.layouts.save("layout.json")' in how
    assert told == [
        "jaxtribute: looking for a layout; 2 of at most 24 programs compiled in 6 s, at most 66 s to go",
        "jaxtribute: looking for a layout; 4 of at most 24 programs compiled in 12 s, at most 60 s to go",
    ]
