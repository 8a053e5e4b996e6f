"""Planted mistakes are found, with the line and what to write instead; right programs raise no alarm.

Some of the cases are run; JAXTRIBUTE_ALL_CASES=1 runs them all.
"""

from pathlib import Path

import jax
import pytest

import jaxtribute as jd
import public_programs
import rarer_programs
import verified_programs
from jaxtribute import testing
from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.verify.sources import is_theirs
from planted_mistakes import verdict_of
from processes import run_python
from samples import ALL_CASES
from verified_programs import RIGHT, WRONG, Case

FILES_OF_PROGRAMS = [one.__file__ for one in (verified_programs, public_programs, rarer_programs)]
EVERY = 1 if ALL_CASES else 13
"""Every so many of the cases are run: a sample spread over the programs, the same each time."""


@pytest.mark.parametrize("case", RIGHT[::EVERY], ids=str)
@pytest.mark.slow
def test_a_right_program_raises_no_alarm(case: Case) -> None:
    found = verdict_of(case)
    assert found.right, str(found)
    assert len(found.tried) >= 5, str(found)


@pytest.mark.parametrize("case", WRONG[::EVERY], ids=str)
@pytest.mark.slow
def test_a_mistake_is_found_with_its_line_and_what_to_write(case: Case) -> None:
    found = verdict_of(case)
    assert found.findings, str(found)
    culprit = found.findings[0].culprit
    lines = [place.line for place in (culprit.place, culprit.elsewhere) if place is not None]
    assert culprit.place is not None, str(found)
    assert culprit.place.file in FILES_OF_PROGRAMS, str(found)
    assert verified_programs.line_of(case) in lines, str(found)
    # Mistakes that no pattern fits are found with their line alone.
    assert culprit.pattern.name in case.patterns, str(found)


SLOTS = "adversarial-discriminator", "adversarial-generator", "over_calls-mean", "with_nnx-mean"
"""Mistakes of which slots alone differ, or by more than what is trained."""


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in WRONG if str(case) in SLOTS], ids=str)
def test_a_mean_that_only_slots_show_is_named_as_one(case: Case) -> None:
    culprit = verdict_of(case).findings[0].culprit
    assert culprit.pattern.name in case.patterns


ROOT = Path(__file__).parents[3]
WRONG_ON_PURPOSE = {"launch.md", "verify.md"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES if page.name not in WRONG_ON_PURPOSE}
EXAMPLES = (
    "digits gpt keras_digits flax_nnx equinox_digits plain_jax haiku_style exact_evaluation elastic local_sgd "
    "recommender"
).split()
SERVERS = "ParameterServerStrategy({"
FILES = [
    *(page for page, text in TEXTS.items() if "strategy.run(" in text and SERVERS not in text),
    *(ROOT / "examples" / f"{name}.py" for name in EXAMPLES),
]
"""The programs of the documentation and the examples that run in one process."""
WITH_SERVERS = [
    *(page for page, text in TEXTS.items() if SERVERS in text),
    *(ROOT / "examples" / f"{name}.py" for name in ("parameter_server", "embeddings")),
]
"""Those that start processes."""


@pytest.mark.slow
def test_examples_and_pages_raise_no_alarm() -> None:
    files = FILES if ALL_CASES else FILES[13::18]
    run_python(ROOT / "tests" / "support" / "verified_files.py", *map(str, files), devices=4, timeout=1800)


@pytest.mark.ray
@pytest.mark.skipif(not ALL_CASES, reason="JAXTRIBUTE_ALL_CASES is not set")
@pytest.mark.parametrize("file", WITH_SERVERS, ids=lambda file: file.name)
def test_programs_with_servers_raise_no_alarm(file: Path) -> None:
    run_python(ROOT / "tests" / "support" / "verified_files.py", str(file), devices=4, timeout=900)


def test_packages_are_told_from_the_users_own_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("package", "package-1.0.dist-info"):
        (tmp_path / folder).mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: package\nVersion: 1.0\n")
    (tmp_path / "package-1.0.dist-info" / "RECORD").write_text("package/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_theirs(str(tmp_path / "package" / "layers.py"))
    assert is_theirs(str(tmp_path / "packages.py"))
    assert is_theirs(__file__)


def test_a_mistake_fails_a_test_and_changes_no_variable(verify_step: object) -> None:
    assert verify_step is testing.verify
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    held = verified_programs.variables(strategy, (2, 2))
    before = held[0].numpy()
    assert testing.verify is verify_step
    step, batch = verified_programs.regression(strategy, "root")
    with pytest.raises(testing.NotOneDeviceError, match=r"verified_programs.py:\d+: .*(\n.*)+INSTEAD"):
        testing.verify(step, *batch, strategy=strategy)
    assert (held[0].numpy() == before).all()


PROGRAM = """
import numpy as np, optax, jaxtribute as jd
strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    w = jd.Variable(np.ones((3, 1), np.float32))
    sgd = jd.Optimizer(optax.sgd(0.1), [w])
def replica(x):
    value, gradients = jd.value_and_grad(lambda: LOSS, [w])()
    sgd.apply_gradients(gradients, "HOW")
@jd.function
def step(x):
    strategy.run(replica, (x,))
data = strategy.experimental_make_numpy_dataset(np.ones((ROWS, 3), np.float32) * np.arange(ROWS)[:, None]).batch(8)
for batch in strategy.experimental_distribute_dataset(data.repeat(4)):
    step(batch)
"""


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize(
    ("loss", "how", "rows", "status"),
    [
        ("((x @ w) ** 2).sum() / 8", "SUM", 16, 0),
        ("((x @ w) ** 2).mean()", "SUM", 16, 1),
        ("((x @ w) ** 2).mean()", "MEAN", 16, 0),
        ("((x @ w) ** 2).mean()", "MEAN", 15, 1),
    ],
)
def test_the_command_says_by_its_status_what_it_found(
    loss: str, how: str, rows: int, status: int, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    jax.devices()  # the command makes devices, and settings of their threads, only where JAX has not begun
    script = tmp_path / "train.py"  # type: ignore[operator]
    text = PROGRAM.replace("LOSS", loss).replace("HOW", how).replace("ROWS", str(rows))
    script.write_text(text.replace("np.float32) * np.arange(", "np.float32) * np.arange(").replace(".repeat(4)", ""))
    assert main(["verify", str(script)]) == status, capsys.readouterr()
    assert ("train.py:8" in capsys.readouterr().out) == ("mean" in loss)
