"""Runs the code cells of a notebook, or a script, on digits, and writes down the numbers that it shows.

Works on TensorFlow and on jaxtribute alike, which only then give the same numbers: data are handwritten digits, in the
order in which they lie, initial weights depend on a variable's shape alone, and random numbers come from NumPy.

    python tutorial_cells.py notebook.ipynb --found found.json     # every cell, whatever the others do
    python tutorial_cells.py --script main.py                      # a script that a cell starts
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from alarms import ASKED, alarms

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?!\w)")
_LIMIT_S = 240
_IMAGES, _TEST_IMAGES = 512, 128


class Recorder:
    """The numbers that the cell at work has shown."""

    def __init__(self) -> None:
        self.numbers: list[float] = []

    def print(self, *values: Any, **options: Any) -> None:
        """Prints, and keeps the numbers."""
        for value in values:
            self._take(value)
        builtins.print(*values, **options)

    def _take(self, value: Any) -> None:
        if isinstance(value, str):
            self.numbers += [float(found) for found in _NUMBER.findall(value)]
        elif isinstance(value, dict):
            for part in (*value.keys(), *value.values()):
                self._take(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                self._take(part)
        elif isinstance(getattr(value, "values", None), (list, tuple)):  # a value on each replica
            self._take(list(value.values))
        else:
            with contextlib.suppress(Exception):
                self.numbers += [float(number) for number in np.asarray(value).ravel()]

    def watch(self, model: Any) -> None:
        """Keeps what `fit` and `evaluate` of a Keras model return."""
        fit, evaluate = model.fit, model.evaluate

        def watched_fit(self_: Any, *args: Any, **kwargs: Any) -> Any:
            history = fit(self_, *args, **kwargs)
            for name in sorted(history.history):
                self.numbers += [float(number) for number in history.history[name]]
            return history

        def watched_evaluate(self_: Any, *args: Any, **kwargs: Any) -> Any:
            found = evaluate(self_, *args, **kwargs)
            if not kwargs.get("_use_cached_eval_dataset"):
                self._take(found)
            return found

        model.fit, model.evaluate = watched_fit, watched_evaluate


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Handwritten digits as images of 28 by 28 bytes, and their labels: for training, and for tests."""
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    large = np.kron(small.reshape(-1, 8, 8), np.ones((3, 3)))
    images = np.pad(large * (255 / 16), ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    end = _IMAGES + _TEST_IMAGES
    labels = np.asarray(labels).astype(np.uint8)
    return (images[:_IMAGES], labels[:_IMAGES]), (images[_IMAGES:end], labels[_IMAGES:end])


def prepare(recorder: Recorder) -> None:
    """Puts digits, weights and random numbers in place of those that the two libraries do not share."""
    tf = the_library()
    libraries = [tf.keras]  # first, as it chooses the backend
    import keras
    from keras.src.initializers import random_initializers

    recorder.watch(keras.Model)
    for library in (keras, *libraries):
        for name in ("mnist", "fashion_mnist"):
            getattr(library.datasets, name).load_data = digits
    random_initializers.RandomInitializer.__call__ = _no_weights
    for name in ("VarianceScaling", "RandomUniform", "RandomNormal", "TruncatedNormal", "Orthogonal"):
        getattr(random_initializers, name).__call__ = _weights
    tf.random.uniform = lambda shape, *_, **__: tf.constant(_numbers(shape), tf.float32)
    tf.data.Dataset.shuffle = lambda self, *_, **__: self
    sys.modules["tensorflow_datasets"] = _datasets(tf)


def the_library() -> Any:
    """TensorFlow where it is installed, else this library's names of it."""
    try:
        import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]
    except ModuleNotFoundError:
        import jaxtribute.compat.tf as tf
    else:
        count = int(os.environ.get("JAXTRIBUTE_CPU_DEVICES") or 1)
        if count > 1:
            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    return tf


def _numbers(shape: Any) -> np.ndarray:
    return np.random.default_rng([int(size) for size in shape]).uniform(size=tuple(shape)).astype(np.float32)


def _weights(self: Any, shape: Any, dtype: Any = None, **_: Any) -> Any:
    import keras

    scale = np.sqrt(6 / max(1, int(np.prod(shape[:-1])) + int(shape[-1])))
    return keras.ops.cast((2 * _numbers(shape) - 1) * scale, dtype or "float32")


def _no_weights(self: Any, shape: Any, dtype: Any = None, **_: Any) -> Any:
    raise NotImplementedError(f"{type(self).__name__} has no weights of its own here")


def _datasets(tf: Any) -> ModuleType:
    module = ModuleType("tensorflow_datasets")

    def load(name: str, with_info: bool = False, as_supervised: bool = False) -> Any:
        del name, as_supervised
        parts = {}
        for part, (images, labels) in zip(("train", "test"), digits(), strict=True):
            parts[part] = tf.data.Dataset.from_tensor_slices((images[..., None], labels.astype(np.int64)))
        sizes = {"train": SimpleNamespace(num_examples=_IMAGES), "test": SimpleNamespace(num_examples=_TEST_IMAGES)}
        return (parts, SimpleNamespace(splits=sizes)) if with_info else parts

    vars(module)["load"] = load
    return module


class Cells:
    """Cells that run one after another in one namespace.

    Args:
      recorder: keeps the numbers.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._space: dict[str, Any] = {"__name__": "__main__", "print": recorder.print}
        self._background: list[subprocess.Popen[bytes]] = []

    def run(self, number: int, text: str) -> dict[str, Any]:
        """Runs a cell, and tells what came of it."""
        self._recorder.numbers = []
        random.seed(0)
        np.random.seed(0)
        error = ""
        signal.alarm(_LIMIT_S)
        start = time.monotonic()
        try:
            self._run(number, text)
        except BaseException as problem:  # noqa: BLE001 (a cell may fail in any way)
            traceback.print_exc()
            error = f"{type(problem).__name__}: {problem}".strip()
        finally:
            signal.alarm(0)
        sys.stdout.flush()
        seconds = round(time.monotonic() - start, 2)
        return {"cell": number, "error": error, "numbers": self._recorder.numbers, "seconds": seconds}

    def _run(self, number: int, text: str) -> None:
        first, _, rest = text.partition("\n")
        magic = first.split()
        if magic[:1] == ["%%writefile"]:
            Path(magic[1]).write_text(rest)
        elif magic[:1] == ["%%bash"]:
            self._shell(rest, background="--bg" in magic)
        else:
            if re.search(r"^%killbgscripts", text, re.MULTILINE):
                self.close()
            text = re.sub(r"^[%!].*$", "pass", text, flags=re.MULTILINE)
            file = Path(f"cell_{number}.py").resolve()
            file.write_text(text)
            exec(compile(text, str(file), "exec"), self._space)

    def _shell(self, text: str, *, background: bool) -> None:
        process = subprocess.Popen(["bash", "-c", text], start_new_session=True)
        if background:
            self._background.append(process)
        elif process.wait():
            raise RuntimeError(f"{shlex.quote(text.strip())} ended with status {process.returncode}")

    def close(self) -> None:
        """Ends what cells have started in the background; waits for what is about to end by itself."""
        for process in self._background:
            try:
                process.wait(_LIMIT_S / 4)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        self._background.clear()


def _stop(*_: Any) -> None:
    raise TimeoutError(f"a cell took over {_LIMIT_S} s")


def run_notebook(file: Path, found: Path) -> None:
    """Runs the cells of a notebook, and writes what came of them."""
    recorder = Recorder()
    cells = Cells(recorder)
    outcomes: list[dict[str, Any]] = []
    first = True
    found_wrong: list[str] = []
    verifying = ExitStack()
    for number, cell in enumerate(json.loads(file.read_text())["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        text = "".join(cell["source"])
        if first and re.search(r"^import (tensorflow|jaxtribute)", text, re.MULTILINE):
            prepare(recorder)  # where the program starts the library, so that settings before have their effect
            first = False
            if ASKED:
                found_wrong = verifying.enter_context(alarms())
        outcomes.append(cells.run(number, text))
        outcomes[-1]["error"] += "; ".join(found_wrong)
        found_wrong.clear()
        found.write_text(json.dumps(outcomes))
    cells.close()
    verifying.close()


def run_script(file: Path) -> None:
    """Runs a script, with the same data; it writes its numbers to `NAME.task.json`."""
    recorder = Recorder()
    prepare(recorder)
    sys.path.insert(0, "")
    space = {"__name__": "__main__", "__file__": str(file), "print": recorder.print}
    try:
        exec(compile(file.read_text(), str(file.resolve()), "exec"), space)
    finally:
        task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
        Path(f"{file.stem}.{task}.json").write_text(json.dumps(recorder.numbers))


def main(run: Callable[[Path, Path], None] = run_notebook) -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path, nargs="?")
    parser.add_argument("--found", type=Path, default=Path("found.json"))
    parser.add_argument("--script", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    if arguments.script:
        run_script(arguments.script)
    else:
        run(arguments.notebook, arguments.found)


if __name__ == "__main__":
    main()
