"""What XLA's compiler for CUDA makes of steps, without a GPU: memory, collectives and donation."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from compiled_programs import PROGRAMS, planned, train
from jaxtribute._src.addons.compiling.step import DoesNotFitError

pytestmark = [
    pytest.mark.skipif(find_spec("jax_cuda12_plugin") is None, reason="JAX's plugin for CUDA is missing: 5 GB"),
    pytest.mark.slow,
    pytest.mark.optimized,
]
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "mirrored": jd.MirroredStrategy,
    "fully-sharded": jd.FullyShardedStrategy,
}


@pytest.fixture(autouse=True)
def standard_promotion() -> Any:
    """Optimizers' and users' code as it is usually run."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", STRATEGIES)
def test_all_state_is_donated_and_nothing_goes_to_the_host(kind: str, name: str) -> None:
    found = jd.experimental.compile_for("h100:2x4", lambda: train(STRATEGIES[kind](), PROGRAMS[name]))
    assert (found.replicas, found.topology.hosts) == (8, 2)
    assert found.copied == ()
    assert found.donated >= found.state
    assert found.host == 0
    assert min(found.flops, found.traffic, found.estimate) > 0


@pytest.mark.parametrize("topology", ["a100:1x4", "h200:1x4", "b200:1x4"])
def test_a_small_models_gradients_are_reduced_in_one_collective(topology: str) -> None:
    found = jd.experimental.compile_for(topology, lambda: train(jd.MirroredStrategy(), PROGRAMS["digits"]))
    assert [one.kind for one in found.collectives] == ["all-reduce"]
    # Forward, and backward for the kernels and for what comes between them.
    assert found.flops == 2 * 16 * (2 * 64 * 256 + 3 * 256 * 10)


def test_what_does_not_fit_is_refused_with_the_figure() -> None:
    def huge() -> Any:
        table = jd.Variable(lambda: jnp.ones((1 << 22, 4096)))  # 64 GiB, and as much again for each of Adam's slots
        return [table], lambda x: (x @ table.read_value().T).sum(axis=-1), [np.zeros((64, 4096), np.float32)]

    with pytest.raises(DoesNotFitError, match=r"does not fit on h100:1x4: each device needs .* GiB are missing\. Var"):
        jd.experimental.compile_for("h100:1x4", lambda: train(jd.MirroredStrategy(), huge))

    def wide() -> Any:
        kernel = jd.Variable(lambda: jnp.ones((4, 1 << 20)))  # whose products with 16,384 rows are 64 GiB
        return [kernel], lambda x: jnp.sin(jnp.sin(x @ kernel)).sum(axis=-1), [np.zeros((1 << 16, 4), np.float32)]

    with pytest.raises(DoesNotFitError, match=r"does not fit on h100:1x4: .* HINT: bound what the backward pass keeps"):
        jd.experimental.compile_for("h100:1x4", lambda: train(jd.MirroredStrategy(), wide))


def test_plan_prints_what_the_compiler_says(tmp_path: Path) -> None:
    printed = planned("h100:2x4", 8, tmp_path)
    assert "Compiled for h100:2x4, 8 device(s) on 2 host(s)" in printed
    assert re.search("1 (asynchronous )?all-reduce of", printed)
    assert "h100:1x4" in printed
