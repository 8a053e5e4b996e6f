"""Strategies and values in notebooks."""

import jax.numpy as jnp
import pytest

import jaxtribute as jd


@pytest.fixture
def strategy() -> jd.Strategy:
    return jd.MirroredStrategy(["CPU:0", "CPU:1"])


def html(value: object) -> str:
    """The representation that a notebook asks for."""
    return getattr(value, "_repr_html_")()  # noqa: B009


def test_a_strategy(strategy: jd.Strategy) -> None:
    shown = html(strategy)
    assert "<b>MirroredStrategy, 2 replica(s)</b>" in shown
    assert shown.count("<tr>") == 3
    assert "this process" in shown
    assert "OneDeviceStrategy" in html(jd.OneDeviceStrategy("CPU:3"))
    assert "<table>" in html(jd.get_strategy())


def test_values_and_variables(strategy: jd.Strategy) -> None:
    with strategy.scope():
        variable = jd.Variable(jnp.arange(12.0).reshape(3, 4), name="<b>w</b>")
    shown = html(variable)
    assert "&lt;b&gt;w&lt;/b&gt;" in shown
    assert "<b>w</b>" not in shown
    assert "(3, 4)" in shown
    assert "[0., 1., 2., 3.]" in shown
    each = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.full((2,), context.replica_id_in_sync_group)
    )
    assert "[1, 1]" in html(each)
    texts = strategy.experimental_distribute_values_from_function(lambda context: "<script>")
    assert "&lt;script&gt;" in html(texts)


def test_many_replicas_and_empty_arrays() -> None:
    strategy = jd.MirroredStrategy([f"CPU:{i}" for i in range(8)])
    empty = strategy.experimental_distribute_values_from_function(lambda context: jnp.zeros((0, 3)))
    assert html(empty).count("[]") == 8


def test_in_a_traced_program(strategy: jd.Strategy) -> None:
    with strategy.scope():
        variable = jd.Variable(0.0, name="v")
    found: list[str] = []

    @jd.function
    def step() -> None:
        found.append(html(variable))

    step()
    assert found[0].startswith("<pre>")
