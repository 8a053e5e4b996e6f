"""Probes of a machine: that they do what they say, and what is made of their times. None depends on the time taken."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtribute._src.addons.planning import probes as module
from jaxtribute._src.addons.planning.probes import Parts, Probes, Wanted, measure, parts, probes
from jaxtribute._src.addons.planning.products import products
from jaxtribute._src.addons.tools.hlo.exchanges import Collective

KINDS = (
    Collective("all-reduce", (2048, 4)),
    Collective("all-gather", (4096,)),
    Collective("reduce-scatter", (4096,)),
    Collective("collective-permute", (64,)),
)
PRODUCTS = products(jax.make_jaxpr(jnp.matmul)(np.ones((6, 4), np.float32), np.ones((4, 3), np.float32)).jaxpr)


def test_the_parts_of_a_step() -> None:
    """The machine of this test takes 1 s to launch, 1 ms for 1,024 bytes, 1 s for two products, 0.5 s to exchange."""
    base = 1.0
    taken = {"base": base, "launch": 1.5, "meeting": base + 0.1, "collectives": base + 0.5}
    taken |= {"pass 1024": base + 0.016, "pass 16384": base + 0.256, "products": base + 0.1 + 0.5 + 0.002}
    times = {"pass 1024": 16.0, "pass 16384": 16.0, "products": 0.5}
    wanted = Wanted(arrays=100, products=PRODUCTS, passes=[1024, 2048, 32768], collectives=KINDS)
    found = parts(wanted, taken, Probes({}, times, besides=[2048]))
    assert found.launch == pytest.approx(1.5 - 100 * 0.001), "without the passes that its arrays need"
    assert found.passes == pytest.approx(0.001 + 0.002 + 0.032), "between sizes a line, beyond the last in proportion"
    assert found.products == pytest.approx(1.0), (
        "without the pass besides, and without the meeting, which is an exchange"
    )
    assert found.collectives == pytest.approx(0.5)
    assert found.compute == pytest.approx(found.launch + found.products + found.passes)


def test_what_is_not_there_takes_no_time() -> None:
    taken = {"base": 1.0, "launch": 0.5, "pass 1024": 0.5, "pass 16384": 2.0}
    found = parts(Wanted(1, [], [], ()), taken, Probes({}, {"pass 1024": 1.0, "pass 16384": 1.0}))
    assert found == Parts(1.0, 0.0, 0.0, 0.0), "and none takes less than none"


def test_the_probes_of_a_step() -> None:
    wanted = Wanted(3, PRODUCTS, [1 << 20], KINDS)
    found = probes(wanted, jax.devices()[:2])
    assert list(found.calls) == [
        "base",
        "launch",
        "meeting",
        "products",
        *(f"pass {1 << n}" for n in (10, 14, 18, 22)),
        "collectives",
    ]
    results: dict[str, Any] = {}
    for name, call in found.calls.items():
        call()
        results[name] = call()[1]
        assert all(len(one.sharding.device_set) == 2 for one in jax.tree.leaves(results[name])), name
    assert len(results["launch"]) == 3
    assert results["products"][0].shape == (12, 3), "each device by itself"
    assert (np.asarray(results["products"][0]) == 4.0).all()
    assert results["pass 1024"].nbytes == 2 * 512, "half of the bytes are read, half written"
    summed, *_, sent = results["collectives"]
    assert np.asarray(summed)[0] == 2.0, "of both devices"
    assert sent.shape == (2 * 16,)
    alone = probes(Wanted(1, [], [], KINDS), jax.devices()[:1])
    assert "collectives" not in alone.calls
    assert "products" not in alone.calls


def test_each_call_waits_for_the_one_before() -> None:
    """What a call returns first is what the next is given."""
    call = probes(Wanted(1, [], [], ()), jax.devices()[:1]).calls["base"]
    assert [float(call()[0][0]) for _ in range(3)] == [0.5, 0.25, 0.125]


def test_products_end_in_a_meeting_where_the_step_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    def lowered(wanted: Wanted, devices: int) -> list[str]:
        texts: list[str] = []
        real = jax.jit

        def jit(function: Any) -> Any:
            program = real(function)

            def run(*arguments: Any) -> Any:
                texts.append(program.lower(*arguments).as_text())
                return program(*arguments)

            return run

        monkeypatch.setattr(jax, "jit", jit)
        found = probes(wanted, jax.devices()[:devices])
        monkeypatch.setattr(jax, "jit", real)
        return [name for name in ("base", "meeting", "products") if found.calls[name]() and "all_reduce" in texts.pop()]

    assert lowered(Wanted(1, PRODUCTS, [], KINDS[:1]), 2) == ["meeting", "products"]
    assert lowered(Wanted(1, PRODUCTS, [], ()), 2) == []
    assert lowered(Wanted(1, PRODUCTS, [], KINDS[:1]), 1) == []


def test_the_fastest_turn_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_turns(calls: dict[str, Any], counts: dict[str, int], rounds: int) -> dict[str, list[float]]:
        assert set(calls) == set(counts)
        assert module.FEWEST <= rounds <= module.MOST
        return {name: [5.0, 3.0 if name == "step" else 1.0, 4.0] for name in calls}

    monkeypatch.setattr(module, "in_turns", in_turns)
    steps: list[int] = []
    found, whole = measure(Wanted(1, [], [], ()), lambda: steps.append(1), jax.devices()[:1])
    assert whole == 3.0
    assert found.launch == 1.0
    assert len(steps) == 4, "it is warmed up, and tried once to see how often it fits into a turn"
