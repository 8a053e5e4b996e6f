"""Advice on compiled steps, by this machine's compiler and the rates of a TPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxtribute._src.addons.compiling import advice as advising
from jaxtribute._src.addons.compiling.targets import compile_script
from jaxtribute._src.addons.compiling.topologies import check_topology
from jaxtribute._src.addons.fitting.places import place
from jaxtribute._src.addons.planning.kinds import DEVICES
from jaxtribute._src.addons.tools.hlo.schedule import Timing
from jaxtribute.errors import ArgumentError

SCRIPT = """
import jax
import jax.numpy as jnp
import numpy as np
import optax
import jaxtribute as jd

LAYERS, WIDTH, DTYPE, SCANNED, PRINTS = {settings}
strategy = jd.MirroredStrategy()
with strategy.scope():
    stack = jd.Variable(lambda: jnp.ones((LAYERS, WIDTH, WIDTH)), name="stack")
    optimizer = jd.Optimizer(optax.sgd(0.1), [stack])

def layer(x, weight):
    return jnp.tanh(x @ weight), None

def update(x):
    def loss():
        weights = stack.read_value().astype(DTYPE)
        hidden = x.astype(DTYPE)
        if SCANNED:
            hidden, _ = jax.lax.scan(layer, hidden, weights)
        else:
            for each in weights:
                hidden, _ = layer(hidden, each)
        if PRINTS:
            jax.debug.callback(lambda: None)
        return hidden.astype("float32").sum()

    value, gradients = jd.value_and_grad(loss, [stack])()
    optimizer.apply_gradients(gradients)

@jd.function
def step(batch):
    strategy.run(update, (batch,))

for batch in strategy.experimental_distribute_dataset([np.ones((4 * 2048, WIDTH), np.float32)]):
    step(batch)
"""


def advice(folder: Path, *settings: object, strategy: str = "", optimizer: str = "optax.sgd(0.1), [stack]") -> str:
    script = folder / "train.py"
    text = SCRIPT.replace("{settings}", repr(settings)).replace("optax.sgd(0.1), [stack]", optimizer)
    script.write_text(text.replace("MirroredStrategy()", f"MirroredStrategy({strategy})"))
    found = compile_script(script, (), place("v5e:2x2", None, asked=False), lambda _: None)
    assert "What would make it faster" in str(found) or not found.advice
    return "\n".join(found.advice)


@pytest.mark.parametrize(("width", "told"), [(200, "200 is no multiple of 128: 22%"), (384, ""), (96, "")])
def test_lengths_that_fill_no_tile(tmp_path: Path, width: int, told: str) -> None:
    found = advice(tmp_path, 3, width, "bfloat16", True, False)
    assert told in found
    assert ("is no multiple" in found) == bool(told)


def test_numbers_of_32_bits(tmp_path: Path) -> None:
    assert "100% of the products' operations are of 32-bit numbers" in advice(tmp_path, 2, 128, "float32", True, False)
    assert "32-bit" not in advice(tmp_path, 2, 128, "bfloat16", True, False)


@pytest.mark.parametrize(("layers", "scanned", "told"), [(6, False, True), (6, True, False), (3, False, False)])
def test_equal_layers(tmp_path: Path, layers: int, scanned: bool, told: bool) -> None:
    found = advice(tmp_path, layers, 128, "bfloat16", scanned, False)
    assert (f"{layers} layers seem to be equal" in found) == told


def test_what_waits(tmp_path: Path) -> None:
    found = advice(tmp_path, 2, 512, "bfloat16", True, True)
    assert "debug_callback in the step" in found
    assert "among 4, which nothing hides" in found


WIRE = 'communication_options=jd.experimental.CommunicationOptions(wire="bfloat16")'
BOTH, FEWER = 'accumulate_steps, wire="bfloat16", or what', "accumulate_steps, or what"


@pytest.mark.parametrize(
    ("strategy", "optimizer", "kind", "told"),
    [
        ("", "optax.sgd(0.1), [stack]", "all-reduce", BOTH),
        # The gradients of updates in slices stay exact, and so does what the replicas gather.
        ("", "optax.adam(0.1), [stack], shard_update=True", "all-gather", FEWER),
        ("", "optax.adam(0.1), [stack], shard_update=True", "reduce-scatter", FEWER),
        (WIRE, "optax.adam(0.1), [stack], shard_update=True", "reduce-scatter", FEWER),
    ],
)
def test_only_what_changes_something_is_advised(
    tmp_path: Path, strategy: str, optimizer: str, kind: str, told: str
) -> None:
    found = advice(tmp_path, 2, 1024, "bfloat16", True, False, strategy=strategy, optimizer=optimizer)
    waits = [line for line in found.splitlines() if f"waiting for {kind}" in line]
    assert waits, found
    assert all(f"more examples on each device, {told}" in line for line in waits), found
    assert ("wire=" in found) == (told == BOTH), found


@pytest.mark.parametrize("strategy", [WIRE, "cross_device_ops=jd.HierarchicalCopyAllReduce()"], ids=["wire", "tree"])
def test_a_smaller_type_is_not_advised_where_it_is_set_or_refused(tmp_path: Path, strategy: str) -> None:
    assert "wire=" not in advice(tmp_path, 2, 1024, "bfloat16", True, False, strategy=strategy)


def variable(*, by_rows: bool = False, size: int = 1 << 20, wire: str | None = None) -> SimpleNamespace:
    policy = SimpleNamespace(by_rows=by_rows, cut=None)
    strategy = SimpleNamespace(extended=SimpleNamespace(wire=wire, summation=lambda options: None))
    return SimpleNamespace(
        policy=policy, trainable=True, dtype=np.dtype(np.float32), size=size, distribute_strategy=strategy
    )


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        # Tables refuse `accumulate_steps`; what they exchange is no sum, and stays as it is.
        ([variable(by_rows=True), variable(size=1000)], {"all-to-all": "device, or", "all-reduce": "device, or"}),
        ([variable(by_rows=True)], {"all-to-all": "device, or"}),
        ([variable(size=1000)], {"all-reduce": "device, accumulate_steps, or", "all-gather": "device, or"}),
        ([variable(wire="int8")], {"all-to-all": "device, accumulate_steps, or", "all-reduce": "accumulate_steps, or"}),
        ([], {"all-reduce": "device, or"}),
    ],
    ids=["table and weights", "table", "small", "wire", "evaluation"],
)
def test_what_tables_and_small_arrays_exchange(variables: list[Any], told: dict[str, str]) -> None:
    step: Any = SimpleNamespace(
        program=SimpleNamespace(donated=variables),
        replicas=4,
        per_replica=1,
        traced=lambda: jax.make_jaxpr(abs)(1.0).jaxpr,
    )
    timing = Timing(step=1.0, waits={(kind, 4): 0.5 for kind in told})
    lines = advising.advice(step, DEVICES["tpu-v5e"], timing, 1.0, lambda one: one.nbytes * 1e-9)
    assert len(lines) == len(told)
    for line, (kind, text) in zip(lines, told.items(), strict=True):
        assert kind in line
        assert text in line


def test_logical_devices_are_for_the_search() -> None:
    with pytest.raises(ArgumentError, match=r"no topology is called 'cpu:4'.*such as cpu:8, are for --fit alone"):
        check_topology("cpu:4")
