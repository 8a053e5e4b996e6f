"""A number of replicas that a program keeps is 1 for one device, wherever it is kept; what is computed of it is not."""

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxtribute import testing
from jaxtribute._src.addons.verify.counting import Counting
from verified_programs import arrays

PROGRAM = """
import dataclasses, functools, typing
import jax, jax.numpy as jnp, numpy as np, optax
import jaxtribute as jd
strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    w = jd.Variable(np.ones((3, 1), "float32"), name="w")
    optimizer = jd.Optimizer(optax.sgd(0.1), [w])

def train(x, y, n):
    def loss():
        total = ((x @ w - y) ** 2).sum() / 12
        return LOSS
    _, gradients = jd.value_and_grad(loss, [w])()
    optimizer.apply_gradients(gradients)

FORM

if "step" not in globals():
    @jd.function
    def step(x, y):
        strategy.run(replica, (x, y))
"""
WRONG = "total / n"
RIGHT = "total + 0.1 * jnp.sum(w.read_value() ** 2) / n"
READS = "def replica(x, y):\n    train(x, y, N)"
FORMS = {
    "module": f"N = strategy.num_replicas_in_sync\n{READS}",
    "tuple": f"ROWS, N = 6, strategy.num_replicas_in_sync\n{READS}",
    "int": f"N = int(strategy.num_replicas_in_sync)\n{READS}",
    "float": f"N = float(strategy.num_replicas_in_sync)\n{READS}",
    "array": f"N = jnp.float32(strategy.num_replicas_in_sync)\n{READS}",
    "alias": f"COUNT = strategy.num_replicas_in_sync\nN = COUNT\n{READS}",
    "closure": """
def make():
    n = strategy.num_replicas_in_sync
    return lambda x, y: train(x, y, n)
replica = make()""",
    "parameter": """
def make(rows, n):
    def replica(x, y):
        train(x, y, n)
    return replica
replica = make(6, n=strategy.num_replicas_in_sync)""",
    "attribute": """
class Trainer:
    def __init__(self, strategy):
        self.replicas = strategy.num_replicas_in_sync
    def replica(self, x, y):
        train(x, y, self.replicas)
replica = Trainer(strategy).replica""",
    "handed on": """
class Base:
    def __init__(self, count):
        self.replicas = count
    def replica(self, x, y):
        train(x, y, self.replicas)
class Trainer(Base):
    def __init__(self, count):
        super().__init__(count)
replica = Trainer(strategy.num_replicas_in_sync).replica""",
    "class": """
class Trainer:
    replicas = strategy.num_replicas_in_sync
    def replica(self, x, y):
        train(x, y, self.replicas)
replica = Trainer().replica""",
    "slots": """
class Trainer:
    __slots__ = ("replicas",)
    def __init__(self):
        self.replicas = strategy.num_replicas_in_sync
trainer = Trainer()
def replica(x, y):
    train(x, y, trainer.replicas)""",
    "dataclass": """
@dataclasses.dataclass(frozen=True)
class Config:
    rows: int
    replicas: int
config = Config(6, strategy.num_replicas_in_sync)
def replica(x, y):
    train(x, y, config.replicas)""",
    "default": "def replica(x, y, n=strategy.num_replicas_in_sync):\n    train(x, y, n)",
    "keyword": "def replica(x, y, *, n=strategy.num_replicas_in_sync):\n    train(x, y, n)",
    "partial": "replica = functools.partial(train, n=strategy.num_replicas_in_sync)",
    "dictionary": 'CONFIG = {"n": strategy.num_replicas_in_sync}\ndef replica(x, y):\n    train(x, y, CONFIG["n"])',
    "run": """
N = strategy.num_replicas_in_sync
@jd.function
def step(x, y):
    strategy.run(train, args=(x, y, N))""",
    "beside keys": f"N = strategy.num_replicas_in_sync\nKEY = jax.random.key(0)\n{READS}, jax.random.fold_in(KEY, 1)",
    "key as well": """
def make(n, key):
    def replica(x, y):
        train(x, y, n)
        return key
    return replica
make(6, strategy.num_replicas_in_sync)
replica = make(strategy.num_replicas_in_sync, jax.random.key(0))""",
    "jit": """
N = strategy.num_replicas_in_sync
@jax.jit
def over(total):
    return 1.0 / N
def replica(x, y):
    train(x, y, 1 / over(x.sum() * 0 + y.sum()))""",
}
"""Ways to keep the number."""
FIXED = {
    "named tuple": """
class Config(typing.NamedTuple):
    replicas: int
config = Config(strategy.num_replicas_in_sync)
def replica(x, y):
    train(x, y, config.replicas)""",
    "partial": """
def own(n, x, y):
    train(x, y, n)
replica = functools.partial(own, strategy.num_replicas_in_sync)""",
}
"""Ways that nothing can change."""


def program(folder: Path, patch: pytest.MonkeyPatch, form: str, loss: str) -> Any:
    """A user's module, which is loaded as long as the test runs."""
    file = folder / "users_program.py"
    file.write_text(PROGRAM.replace("FORM", form).replace("LOSS", loss))
    spec = importlib.util.spec_from_file_location("users_program", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, "users_program", module)
    with jax.numpy_dtype_promotion("standard"):
        spec.loader.exec_module(module)
    return module


def verified(module: Any) -> testing.Verdict:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return testing.verify(module.step, *arrays((12, 3), (12, 1)), strategy=module.strategy, raises=False)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("loss", [WRONG, RIGHT], ids=["wrong", "right"])
def test_a_kept_number_of_replicas_is_that_of_the_devices(
    form: str, loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = program(tmp_path, monkeypatch, form, loss)
    before = {name: value for name, value in vars(module).items() if isinstance(value, int | float)}
    found = verified(module)
    assert found.right == (loss is RIGHT), str(found)
    assert (not found.findings) == (loss is RIGHT), str(found)
    assert not found.unverified, str(found)
    assert {name: vars(module)[name] for name in before} == before


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("form", FIXED.values(), ids=FIXED)
def test_a_number_that_nothing_can_change_is_not_verified(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verified(program(tmp_path, monkeypatch, form, WRONG))
    assert (found.right, found.status) == (False, 2), str(found)
    assert any("keeps the number of replicas" in one for one in found.unverified), str(found)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize(
    "kept",
    ["BATCH = 6 * strategy.num_replicas_in_sync", "REPLICAS = strategy.num_replicas_in_sync\nBATCH = 6 * REPLICAS"],
)
def test_a_batch_size_that_is_computed_of_it_stays_as_it_is(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = f"{kept}\ndef replica(x, y):\n    train(x, y, BATCH)"
    found = verified(program(tmp_path, monkeypatch, form, "total * 12 / n"))
    assert found.right, str(found)
    assert not found.findings, str(found)


def test_a_name_of_another_scope_holds_something_else() -> None:
    counting = Counting(
        {
            "a.py": "def f():\n    n = strategy.num_replicas_in_sync\n    return n\ndef g(n):\n    return lambda: n\n",
        }
    )
    assert counting.of_function("a.py", 1, "f") == {"n"}
    assert counting.of_function("a.py", 4, "g") == set()
    assert counting.of_function("a.py", 5, "<lambda>") == set()
    assert counting.of_module("a.py") == set()


def test_files_that_the_number_gets_to_are_read_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read each file of a large program would take seconds."""
    read: list[str] = []
    parse = ast.parse

    def noted(text: str) -> ast.Module:
        read.append(text)
        return parse(text)

    monkeypatch.setattr(ast, "parse", noted)
    texts = {
        "main.py": "from model import Net\nfrom work import go\nnet = Net(strategy.num_replicas_in_sync)\n",
        "model.py": "class Net:\n    def __init__(self, parts):\n        self.parts = parts\n",
        "work.py": "def go(net):\n    return half(net . parts)\n",
        "half.py": "def half(value):\n    return value / 2\n",
        "apart.py": "def parts(value):\n    return value\n",
    }
    counting = Counting(texts)
    assert counting.attributes == {"parts"}
    assert counting.of_function("half.py", 1, "half") == {"value"}
    assert counting.of_module("apart.py") == counting.of_function("apart.py", 1, "parts") == set()
    assert read == [texts[file] for file in ("main.py", "model.py", "work.py", "half.py")]
