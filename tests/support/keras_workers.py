"""What the workers of a cluster run in the tests of Keras. Each returns what its test looks at."""

from __future__ import annotations

import contextlib
import io
import os
import random
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np

os.environ["KERAS_BACKEND"] = "jax"

from worker_programs import rank, strategy


@contextlib.contextmanager
def relaxed() -> Generator[None]:
    """JAX's own promotion: Keras is not written for the strictest. XLA is told to hurry."""
    names = "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion", "jax_disable_most_optimizations"
    before = [*(getattr(jax.config, name) for name in names[:2]), False]
    for name, value in zip(names, ("standard", "allow", True), strict=True):
        jax.config.update(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)


def train(directory: str) -> dict[str, Any]:
    """Trains in several ways; each worker has seeds of its own."""
    with relaxed():
        return _train(Path(directory))


def _train(directory: Path) -> dict[str, Any]:
    from keras_models import BATCH, X, Y, classifier, keras, trained

    s = strategy()
    with s.scope():
        model = classifier()
    found: dict[str, Any] = {"in order": trained(model, shuffle=False, epochs=1)}
    np.random.seed(rank())
    random.seed(rank())
    seen: list[str] = []

    class Plain(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append("epoch")

    shown = io.StringIO()
    callbacks = [
        Plain(),
        keras.callbacks.CSVLogger(str(directory / f"log-{rank()}.csv")),
        keras.callbacks.ModelCheckpoint(directory / f"best-{rank()}.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore(directory / f"backup-{rank()}"),
    ]
    with contextlib.redirect_stdout(shown):
        history = model.fit(X, Y, batch_size=BATCH, epochs=1, callbacks=callbacks, verbose=2).history
    model.save(directory / f"model-{rank()}.keras")
    found |= {"shuffled": history["loss"], "shown": shown.getvalue(), "seen": seen}
    found["predictions"] = model.predict(X[:6], batch_size=BATCH, verbose=0)
    found["weights"] = model.get_weights()
    found |= _sources(model, keras, X, Y, BATCH)
    return found


def _sources(model: Any, keras: Any, x: Any, y: Any, batch: int) -> dict[str, Any]:
    import grain

    class Shuffled(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return x[index * batch : (index + 1) * batch], y[index * batch : (index + 1) * batch]

    history = model.fit(Shuffled(), epochs=1, verbose=0).history
    found: dict[str, Any] = {"pydataset": history["loss"]}
    records = grain.MapDataset.source(list(zip(x, y, strict=True))).batch(batch)
    found["grain"] = model.evaluate(records, verbose=0)
    found["arrays"] = model.evaluate(x, y, batch_size=batch, verbose=0)
    try:
        model.fit(Shuffled(workers=2), epochs=1, verbose=0)
    except ValueError as error:
        found["error"] = str(error)
    return found


SAVES = (
    *("save", "not compiled", "save_model", "weights"),
    *("checkpoint callback", "own callback", "backup", "first alone", "second alone"),
)
"""Ways to save that `save_and_load` tries."""


def save_and_load(directory: str) -> dict[str, float]:
    """Saves and loads in a folder that workers share, and in one of each worker's own, as on disks that are not shared.

    Returns how far what was loaded is from what was saved, by places and ways.
    """
    found: dict[str, float] = {}
    strategy()  # of which the worker's number comes
    with relaxed():
        for place in ("shared", f"own-{rank()}"):
            folder = Path(directory) / place
            folder.mkdir(exist_ok=True)
            found |= {f"{place} {way}": off for way, off in _saved_and_loaded(folder).items()}
    return found


def _saved_and_loaded(folder: Path) -> dict[str, float]:
    from keras_models import BATCH, X, Y, classifier, keras

    s = strategy()
    with s.scope():
        model = classifier()
    fit: dict[str, Any] = {"x": X, "y": Y, "batch_size": BATCH, "shuffle": False, "verbose": 0}

    def off(other: Any) -> float:
        pairs = zip(model.get_weights(), other.get_weights(), strict=True)
        return max(float(np.abs(one - two).max()) for one, two in pairs)

    class Own(keras.callbacks.Callback):
        """Saves, and loads at once."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.save(folder / "own.keras")
            found["own callback"] = off(keras.models.load_model(folder / "own.keras"))

    class Interrupted(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise InterruptedError

    found: dict[str, float] = {}
    model.fit(**fit, callbacks=[keras.callbacks.ModelCheckpoint(folder / "new" / "last.keras"), Own()])
    found["checkpoint callback"] = off(keras.models.load_model(folder / "new" / "last.keras"))
    for number, way in enumerate(("first alone", "second alone")):
        if rank() == number:  # nobody waits for the other
            model.save(folder / f"{way}.keras")
            keras.models.load_model(folder / f"{way}.keras")
        model.save(folder / f"{way} before.keras")
        found[way] = off(keras.models.load_model(folder / f"{way} before.keras"))
    model.save(folder / "model.keras")
    found["save"] = off(keras.models.load_model(folder / "model.keras"))
    with s.scope():
        plain = keras.models.clone_model(model)  # which has no optimizer
    plain.set_weights(model.get_weights())
    plain.save(folder / "plain.keras")
    found["not compiled"] = off(keras.models.load_model(folder / "plain.keras"))
    keras.saving.save_model(model, folder / "function.keras")
    with s.scope():
        loaded = keras.models.load_model(folder / "function.keras")
    found["save_model"] = off(loaded)
    model.save_weights(folder / "model.weights.h5")
    loaded.fit(**fit)
    loaded.load_weights(folder / "model.weights.h5")
    found["weights"] = off(loaded)
    epochs: list[int] = []
    for callbacks in ([Interrupted()], []):
        with s.scope():
            other = classifier()
        with contextlib.suppress(InterruptedError):
            backup = keras.callbacks.BackupAndRestore(folder / "backup")
            epochs = other.fit(**fit, epochs=3, callbacks=[backup, *callbacks]).epoch
    found["backup"] = float(epochs != [2])
    return found


def save_slices(directory: str) -> float:
    """Saves a model of which each worker holds slices, and loads it; returns how far off it is."""
    import jaxtribute as jd

    resolver = strategy().cluster_resolver
    with relaxed():
        from keras_models import BATCH, X, Y, classifier, keras

        with jd.FullyShardedStrategy(cluster_resolver=resolver, min_bytes=0).scope():
            model = classifier()
        path = Path(directory) / "slices.keras"
        backup = keras.callbacks.BackupAndRestore(Path(directory) / "backup")
        model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[backup])
        model.save(path)
        pairs = zip(model.get_weights(), keras.models.load_model(path).get_weights(), strict=True)
        return max(float(np.abs(one - two).max()) for one, two in pairs)
