"""Runs programs and pages of the documentation, and verifies the steps of each: `python verified_files.py FILE...`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

from documents import run_page
from jaxtribute._src.addons.tools.user_scripts import run_script
from jaxtribute._src.addons.verify.verdict import Verdict
from jaxtribute._src.addons.verify.watching import KINDS, Watcher
from jaxtribute.experimental import observe

SHORTER = {
    "parameter_server": ["--epochs", "1"],
    "embeddings": ["--steps", "40"],
    "recommender": ["--rows", "20000", "--steps", "40"],
}
"""Arguments of programs that start processes, or have large tables."""


def verdicts(file: Path) -> list[Verdict]:
    """What comes of the steps of a program, or of a page's."""
    watcher = Watcher(lambda _: None, 6 if file.suffix == ".py" else None)
    with observe(watcher, *KINDS), contextlib.redirect_stdout(io.StringIO()):
        if file.suffix == ".py":
            # All run on the devices of this process.
            text = file.read_text(encoding="utf-8")
            several = ["--devices", "4"] if '"--devices"' in text or "import common" in text else []
            run_script(file, [*several, *SHORTER.get(file.stem, [])])
        else:
            run_page(file)
    return watcher.verdicts


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy", DeprecationWarning)  # Keras's
    wrong = 0
    for name in sys.argv[1:]:
        start = time.process_time()
        found = verdicts(Path(name))
        sys.stdout.write(f"{name}: {len(found)} steps, {time.process_time() - start:.1f} s\n")
        for verdict in found:
            if not verdict.right or not verdict.tried:
                sys.stdout.write(f"{verdict}\n")
            wrong += not verdict.right
        sys.stdout.flush()
    sys.exit(wrong > 0)
