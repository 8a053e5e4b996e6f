"""The two walks of docs/architecture.md: the files that the page names are entered, and no more than it says."""

import json
import re
from pathlib import Path

import pytest

from processes import run_python

PAGE = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text(encoding="utf-8")
SCRIPT = """
    import json, os, sys, threading
    import jax.numpy as jnp, optax
    import jaxtribute as jd

    root = os.path.dirname(jd.__file__)

    def entered(call):
        found = set()

        def look(frame, event, _):
            if event == "call" and frame.f_code.co_filename.startswith(root):
                found.add(os.path.relpath(frame.f_code.co_filename, root).removeprefix("_src/").removeprefix("core/"))

        threading.setprofile(look)
        sys.setprofile(look)
        call()
        sys.setprofile(None)
        threading.setprofile(None)
        return sorted(found)

    # Looked up here: what `jd` imports for a name that is asked for first is no part of a step.
    value_and_grad = jd.value_and_grad
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = jd.Variable(jnp.ones((4, 2)))
        optimizer = jd.Optimizer(optax.adam(1e-2), [w])

    def fn(x):
        loss, gradients = value_and_grad(lambda: ((x @ w) ** 2).mean(), [w])()
        optimizer.apply_gradients(gradients)
        return loss

    @jd.function
    def step(x):
        return strategy.run(fn, (x,))

    x = jnp.ones((8, 4))
    walks = {}
    for name, call in (("eager", lambda: strategy.run(fn, (x,))), ("compiled", lambda: step(x))):
        walks[name] = [entered(call) for _ in range(3)]
    print(json.dumps(walks))
"""


def named(walk: int) -> set[str]:
    """The files that the diagram of a walk names."""
    section = PAGE.split(f"## Walk {walk}: ")[1]
    diagram = section.split("```text")[1].split("```")[0]
    rooms = "strategies|execution|values|collectives|optimizer|jaxprs"
    return set(re.findall(rf"\b(?:{rooms})/\w+\.py", diagram))


@pytest.mark.slow
def test_the_page_names_the_files_that_a_step_goes_through() -> None:
    printed = run_python(SCRIPT, devices=2)
    walks: dict[str, list[set[str]]] = {
        name: [set(files) for files in calls] for name, calls in json.loads(printed.splitlines()[-1]).items()
    }
    for number, name, most in ((1, "eager", 12), (2, "compiled", 12)):
        first = walks[name][0]
        assert named(number) - first == set(), "the page names a file that is not entered"
        assert len(named(number)) <= most
        # One more is a reason to look: another stop on the way costs each reader.
        assert len(first) <= 54, sorted(first)
    assert len(walks["eager"][2]) <= 35
    later = {"execution/function.py", "execution/compiled_step.py", "jaxprs/telltale.py", "values/mesh.py"}
    assert walks["compiled"][2] <= later, "a steady step does more than the page says"
