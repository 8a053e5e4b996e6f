"""Keras on two workers of two devices each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxtribute as jd
import keras_workers
from jaxtribute._src.addons.keras import multi_worker
from jaxtribute._src.addons.testing.shared import SharedRunners
from keras_models import X, assert_same, classifier, keras, trained


@pytest.mark.slow
def test_training_on_two_workers(multi_process: SharedRunners, tmp_path: Path) -> None:
    first, second = multi_process(workers=2, devices=2).run(keras_workers.train, (str(tmp_path),))
    alone = classifier()
    expected = trained(alone, shuffle=False, epochs=1)
    for found in (first, second):
        assert_same(expected, found["in order"])
        assert found["shuffled"] == first["shuffled"]
        assert found["pydataset"] == first["pydataset"]
        np.testing.assert_allclose(found["grain"], found["arrays"], rtol=1e-6)
        np.testing.assert_array_equal(found["predictions"], first["predictions"])
        assert found["seen"] == ["epoch"]
        assert "workers=2, which would shuffle it in another order on each worker" in found["error"]
    assert "loss" in first["shown"]
    assert second["shown"] == ""
    # Paths that differ are like disks of their own.
    files = {path.name for path in tmp_path.iterdir()} - {"backup-0", "backup-1"}
    saved = {f"{name}-{rank}{end}" for name, end in (("best", ".weights.h5"), ("model", ".keras")) for rank in (0, 1)}
    assert files == {"log-0.csv", *saved}
    model = keras.models.load_model(tmp_path / "model-0.keras")
    for saved, weight in zip(model.get_weights(), first["weights"], strict=True):
        np.testing.assert_array_equal(saved, weight)


@pytest.mark.slow
def test_what_one_worker_saves_all_can_load(multi_process: SharedRunners, tmp_path: Path) -> None:
    runner = multi_process(workers=2, devices=2)
    # A dozen fits, which compile for most of their time.
    for found in runner.run(keras_workers.save_and_load, (str(tmp_path),), timeout_s=400):
        assert found == dict.fromkeys(found, 0.0), found
        assert len(found) == 2 * len(keras_workers.SAVES)


@pytest.mark.slow
def test_a_model_in_slices_on_all_workers_is_saved(multi_process: SharedRunners, tmp_path: Path) -> None:
    assert multi_process(workers=2, devices=2).run(keras_workers.save_slices, (str(tmp_path),)) == [0.0, 0.0]


def test_a_process_that_is_alone_shows_and_writes(four: jd.Strategy) -> None:
    assert multi_worker.is_first(four)
    assert not multi_worker.several(four)


def test_who_is_not_the_first_is_silent() -> None:
    def fit(self: Any, x: Any = None, verbose: Any = "auto", callbacks: Any = None) -> None: ...

    stop = keras.callbacks.TerminateOnNaN()
    args, kwargs = multi_worker.silenced(fit, "model", (X,), {"callbacks": [stop, keras.callbacks.CSVLogger("log")]})
    assert (args[0] is X, args[1:], kwargs) == (True, (0, [stop]), {})
    assert multi_worker.silenced(fit, "model", (), {"callbacks": stop}) == ((), {"verbose": 0, "callbacks": [stop]})
    listed = keras.callbacks.CallbackList([stop])
    assert multi_worker.silenced(fit, "model", (X, 1, listed), {})[0][1:] == (0, listed)


def test_random_numbers_of_their_own(four: jd.Strategy) -> None:
    class Adapter:
        shuffle = True
        enqueuer = None

        def get_jax_iterator(self) -> Any:
            return (np.random.randint(1 << 30) for _ in range(3))

    first = list(multi_worker._seeded(Adapter().get_jax_iterator(), 5))  # pyright: ignore[reportPrivateUsage]
    state = str(np.random.get_state())
    assert first == list(multi_worker._seeded(Adapter().get_jax_iterator(), 5))  # pyright: ignore[reportPrivateUsage]
    assert str(np.random.get_state()) == state
    assert len(list(multi_worker.in_one_order(Adapter(), four))) == 3


@pytest.mark.parametrize("catches_up", [False, True])
def test_islands_write_a_file_whole_and_one_that_catches_up_writes_none(
    catches_up: bool, four: jd.Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with four.scope():
        model = classifier()
    monkeypatch.setattr(four.extended.mesh, "catches_up", catches_up, raising=False)
    path = tmp_path / "model.keras"
    path.write_bytes(b"another island's")
    seen: list[bytes] = []

    def write(place: Path) -> None:
        place.write_bytes(b"new")
        seen.append(path.read_bytes())

    multi_worker.once(four, model, path, write)
    assert seen == ([] if catches_up else [b"another island's"])
    assert path.read_bytes() == (b"another island's" if catches_up else b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]
