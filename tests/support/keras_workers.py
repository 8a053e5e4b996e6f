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
