"""What `jaxtribute plan` expects of a script's step on eight devices: by its model, and by the devices' own compiler.

    python -m benchmarks.planned [--json FILE]

The model knows what XLA's CPU compiler says of the step and what makers say of their devices; with `--topology` the
compiler of the devices makes the step itself. Needs `jaxtribute[tpu-compiler,gpu-compiler]`, and no such device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = {
    "digits": ["digits.py", "--strategy", "mirrored", "--devices", "2"],
    "small GPT": ["gpt.py"],
    "small GPT, sharded": ["gpt.py", "--strategy", "fully-sharded"],
}
DEVICES = {"h100": "h100:1x8", "tpu-v5e": "v5e:2x4"}
BATCH = "64"
FIGURES = ("memory", "compute", "collectives", "step")


def planned(options: list[str], script: list[str]) -> dict[str, Any]:
    """What the command prints as JSON."""
    command = [sys.executable, "-m", "jaxtribute.cli", "plan", "--json", "--most", "8", "--batch", BATCH, *options]
    command += [str(EXAMPLES / script[0]), *script[1:]]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def by_model(kind: str, script: list[str]) -> dict[str, float]:
    """Bytes of a device and seconds, as the model has them."""
    found = planned(["--device-kind", kind, "--devices", "8"], script)["prediction"]
    return {name: found[name] for name in FIGURES}


def by_compiler(topology: str, script: list[str]) -> dict[str, float]:
    """The same as the compiler's program has them."""
    found = planned(["--topology", topology], script)["compiled"]
    together = found["hidden"] + found["exposed"]
    return dict(zip(FIGURES, (found["memory"]["total"], found["compute"], together, found["step"]), strict=True))


def main() -> None:
    """Prints both ways for each script and kind of device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one script for one kind of device, to see that it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = Table("script", "devices", "", "memory", "compute us", "collectives us", "step us")
    rows: list[dict[str, Any]] = []
    for kind, topology in list(DEVICES.items())[: 1 if options.quick else None]:
        for name, script in list(SCRIPTS.items())[: 1 if options.quick else None]:
            row = {"by model": by_model(kind, script), "by compiler": by_compiler(topology, script)}
            rows.append({"script": name, "topology": topology, **row})
            for way, found in row.items():
                seconds = [f"{found[figure] * 1e6:.1f}" for figure in FIGURES[1:]]
                table.add_row(name, topology, way, f"{found['memory'] / 1e6:.2f} MB", *seconds)
    Console(width=110).print(table)
    if options.json:
        options.json.write_text(json.dumps({"what": "planned, not run", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
