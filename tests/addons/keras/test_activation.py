"""Keras is found when it is there, and left alone otherwise."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute._src.addons.keras import activation
from jaxtribute._src.core.context import entering
from jaxtribute._src.core.libraries import Library
from processes import run_python

_LATER = """
    import sys
    import jaxtribute as jd
    from jaxtribute._src.core.context import entering

    assert "keras" not in sys.modules
    with jd.MirroredStrategy().scope() as strategy:
        import keras
        import keras.layers

        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    assert not entering
    assert not any(getattr(finder, "_name", None) == "keras" for finder in sys.meta_path)
    assert len(model.weights[0].value.devices()) == 2
    print("found")
"""


@pytest.mark.slow
def test_keras_may_be_imported_inside_the_scope() -> None:
    assert "found" in run_python(_LATER, devices=2, env={"KERAS_BACKEND": "jax"})


def test_a_backend_that_strategies_do_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    from keras import config

    monkeypatch.setattr(config, "backend", lambda: "torch")
    with pytest.warns(UserWarning, match=r"torch backend.*HINT: set the environment variable KERAS_BACKEND=jax"):
        activation.connect()


def test_nnx_variables_are_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxtribute._src.addons.keras import patches

    monkeypatch.setattr(patches, "is_nnx_enabled", lambda: True)
    with pytest.raises(jd.errors.ConfigError, match="HINT: unset KERAS_NNX_ENABLED"):
        activation.connect()


def test_the_watcher_waits_for_keras_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    entering.append(Library("keras", "__version__", activation.connect).find)
    monkeypatch.delitem(sys.modules, "keras")
    with jd.OneDeviceStrategy("CPU:0").scope():
        watcher: Any = sys.meta_path[0]
    try:
        assert not entering
        assert watcher.find_spec("kerasish") is None
        assert watcher in sys.meta_path
        spec = watcher.find_spec("keras", ["/nowhere"])
        assert spec is None
        assert watcher not in sys.meta_path
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not watcher]
