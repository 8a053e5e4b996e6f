"""Runs the scripts beside this file with TensorFlow, and writes what they print at the end, as JSON.

The suite compares with what is recorded and never imports TensorFlow. Made with tensorflow-cpu 2.21 in an environment
of its own:

    python tests/addons/compat/record_tensorflow.py
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def run_together(script: Path, environments: list[dict[str, str]]) -> dict[str, object]:
    """Runs a script once with each environment, all at a time; what the first one prints at last."""
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    processes = [
        subprocess.Popen([sys.executable, str(script)], env=quiet | env, stdout=subprocess.PIPE, text=True)
        for env in environments
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    return json.loads(outputs[0].strip().split("\n")[-1])


def two_workers() -> list[dict[str, str]]:
    workers = [f"localhost:{free_port()}" for _ in range(2)]
    tasks = [{"type": "worker", "index": index} for index in range(2)]
    return [{"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})} for task in tasks]


def main() -> None:
    results: dict[str, object] = {}
    for script in sorted((HERE / "scripts").glob("*.py")):
        environments = two_workers() if script.stem == "multi_worker" else [{}]
        results[script.stem] = run_together(script, environments)
    (HERE / "tensorflow.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
