"""Scripts under other strategies than they name, compiled for this machine's devices; nothing runs."""

import builtins
import json
import sys
from pathlib import Path

import pytest

import jaxtribute as jd
from fitting.scripts import LAYERS, STATE, write
from jaxtribute._src.addons.fitting import automatic
from jaxtribute._src.addons.fitting import script as searching
from jaxtribute._src.addons.fitting.candidates import MIRRORED, SHARDED, TOO_LARGE, Candidate
from jaxtribute._src.addons.fitting.places import devices_in, missing_compiler, place
from jaxtribute._src.addons.fitting.trials import Trials
from jaxtribute.errors import ArgumentError, MissingLibraryError

BATCH = 512


@pytest.mark.quick_cases(2, whole=True)
@pytest.mark.parametrize(
    "strategy",
    [
        "jd.MirroredStrategy(['CPU:0', 'CPU:1'])",
        "jd.FullyShardedStrategy(2, min_bytes=0)",
        "jd.MultiWorkerMirroredStrategy()",
        "jd.TPUStrategy()",
    ],
)
def test_whichever_strategy_a_script_names_the_candidates_trains(tmp_path: Path, strategy: str) -> None:
    trials = Trials(write(tmp_path, strategy), (), place("cpu:4", None, asked=False))
    assert trials.batch() == BATCH
    mirrored, sharded = (trials(Candidate(kind, BATCH), 9) for kind in (MIRRORED, SHARDED))
    assert (mirrored.refusal, sharded.refusal) == ("", "")
    # Adam has two slots, and a gradient counts as well.
    assert mirrored.held >= 4 * STATE
    assert sharded.held < 2.5 * STATE
    assert "beside" not in sys.modules


def test_what_is_asked_for_is_compiled_and_the_library_is_as_it_was(tmp_path: Path) -> None:
    trials = Trials(write(tmp_path), (), place("cpu:4", None, asked=False))
    whole = trials(Candidate(MIRRORED, BATCH), 9)
    grouped = trials(Candidate(MIRRORED, BATCH, per_replica=2), 9)
    assert (grouped.rows, whole.rows) == (256, 128)
    assert 1 < grouped.compiled <= 4
    assert set(grouped.layout) == {f"^matrix_{i}$" for i in range(LAYERS)}
    assert trials(Candidate(MIRRORED, BATCH, per_replica=2, memory=1 << 30), 9).compiled == 1
    fewer = trials(Candidate(MIRRORED, BATCH, accumulate=4), 9)
    assert fewer.rows == 32
    assert fewer.refusal == ""
    strategy = jd.MirroredStrategy(2)
    assert (type(strategy), strategy.num_replicas_in_sync) == (jd.MirroredStrategy, 2)
    assert type(jd.FullyShardedStrategy(2)) is jd.FullyShardedStrategy


def test_a_budget_holds_and_what_is_too_large_is_told(tmp_path: Path) -> None:
    large = place("cpu:1", None, asked=False)
    whole = Trials(write(tmp_path), (), large)(Candidate(MIRRORED, BATCH), 9)
    bounded = Trials(write(tmp_path), (), large)(Candidate(MIRRORED, BATCH, memory=400_000), 9)
    assert bounded.memory < whole.memory
    small = place("cpu:1", whole.memory - 1, asked=False)
    assert Trials(write(tmp_path), (), small)(Candidate(MIRRORED, BATCH), 9).refusal.startswith(TOO_LARGE)
    tiny = Trials(write(tmp_path), (), place("cpu:2", 1000, asked=False))
    refused = [tiny(Candidate(MIRRORED, BATCH, per_replica=2), 9) for _ in range(2)]
    assert [one.compiled for one in refused] == [4, 1]  # the layout is chosen once, from three programs


def test_scripts_that_cannot_be_searched_say_why(tmp_path: Path) -> None:
    target = place("cpu:2", None, asked=False)
    with pytest.raises(ArgumentError, match=r"makes no strategy in whose place .* HINT"):
        Trials(write(tmp_path, "jd.OneDeviceStrategy('CPU:0')"), (), target).batch()
    asked = {"topology": "cpu:2", "analytic": "no compiler", "budget": None, "batch": 64}
    with pytest.raises(ArgumentError, match="makes no strategy in whose place"):
        searching.main(json.dumps(asked), str(tmp_path / "training.py"))
    raising = tmp_path / "raising.py"
    raising.write_text("raise ValueError('no data')\n")
    refusal = Trials(raising, (), target)(Candidate(MIRRORED, BATCH), 9).refusal
    assert refusal == "ValueError: no data"


def test_names_of_devices() -> None:
    assert devices_in("v5e:4x4") == devices_in("h100:2x8") == devices_in("cpu:16") == 16
    assert "processors" in missing_compiler("cpu:8")
    for name in ("v5e", "cpu:x", "q7:4"):
        with pytest.raises(ArgumentError, match="no topology is called"):
            missing_compiler(name)
    if "cuda" not in str(sys.modules):
        with pytest.raises((MissingLibraryError, AssertionError)):
            assert not missing_compiler("h100:2x8")


def test_what_a_script_gives_its_strategy_and_optimizer_stays(tmp_path: Path) -> None:
    options = 'None, communication_options=jd.experimental.CommunicationOptions(wire="bfloat16")'
    source = write(tmp_path, f"jd.MirroredStrategy({options})").read_text()
    script = tmp_path / "accumulating.py"
    script.write_text(source.replace("matrices)\n\ndef", "matrices, accumulate_steps=2)\n\ndef"))
    trials = Trials(script, (), place("cpu:4", None, asked=False))
    found = trials(Candidate(MIRRORED, BATCH, accumulate=2), 9)
    assert found.refusal == ""
    assert (found.own, found.calls) == ({"communication_options": None}, 2)
    assert found.lines(BATCH) == [
        "strategy = jd.MirroredStrategy(communication_options=...)  # ... as the script has it",
        "optimizer = jd.Optimizer(..., accumulate_steps=4)  # each call with 256 examples",
    ]
    placed = Trials(
        write(tmp_path, "jd.FullyShardedStrategy(2, None, min_bytes=0)"), (), place("cpu:4", None, asked=False)
    )
    assert placed(Candidate(SHARDED, BATCH), 9).lines(BATCH) == ["strategy = jd.FullyShardedStrategy(min_bytes=0)"]


def test_a_script_that_ends_itself_under_a_candidate_ends_no_search(tmp_path: Path) -> None:
    script = write(tmp_path)
    text = "if strategy.num_replicas_in_sync == 2: raise SystemExit('two replicas')\nwith strategy.scope"
    script.write_text(script.read_text().replace("with strategy.scope", text))
    trials = Trials(script, (), place("cpu:4", None, asked=False))
    assert trials(Candidate(MIRRORED, BATCH, per_replica=2), 9).refusal == "SystemExit: two replicas"


def test_a_candidates_budget_counts_and_not_the_scripts(tmp_path: Path) -> None:
    script = write(tmp_path)
    own = "jd.config.set_memory_budget('1GiB')\nwith strategy.scope"
    script.write_text(script.read_text().replace("with strategy.scope", own))
    trials = Trials(script, (), place("cpu:1", None, asked=False))
    whole, bounded = (trials(Candidate(MIRRORED, BATCH, memory=memory), 9) for memory in (None, 400_000))
    assert bounded.memory < whole.memory


@pytest.mark.parametrize("place_of", [".venv/lib/site-packages", "vendored/one-1.0.dist-info"])
def test_installed_modules_are_loaded_once_wherever_they_lie(tmp_path: Path, place_of: str) -> None:
    made = tmp_path / place_of
    made.mkdir(parents=True)
    (made / "RECORD").write_text("installed_beside.py,,\n")
    folder = made.parent if made.name.endswith(".dist-info") else made
    (folder / "installed_beside.py").write_text(
        "import builtins\nassert not hasattr(builtins, 'once')\nbuiltins.once = 1\n"
    )
    script = write(tmp_path)
    script.write_text(f"import sys\nsys.path.append({str(folder)!r})\nimport installed_beside\n{script.read_text()}")
    trials = Trials(script, (), place("cpu:1", None, asked=False))
    try:
        assert trials.batch() == trials.batch() == BATCH
    finally:
        sys.modules.pop("installed_beside", None)
        builtins.__dict__.pop("once", None)


def test_calls_between_updates_wait_too(tmp_path: Path) -> None:
    trials = Trials(write(tmp_path, "jd.FullyShardedStrategy(min_bytes=0)"), (), place("cpu:4", None, asked=False))
    found = trials(Candidate(SHARDED, BATCH, accumulate=4), 9)
    assert found.seconds == pytest.approx(found.compute + sum(found.waits.values()))
    once = trials(Candidate(SHARDED, BATCH), 9)
    # Each call gathers the matrices.
    assert found.waits["all-gather among 4"] >= 3.9 * once.waits["all-gather among 4"]


def test_a_layout_that_names_cannot_say_is_chosen_again(tmp_path: Path) -> None:
    script = write(tmp_path)
    named = script.read_text()
    for own in (named, named.replace(', name=f"matrix_{i}"', "")):
        script.write_text(own)
        found = Trials(script, (), place("cpu:4", None, asked=False))(Candidate(MIRRORED, BATCH, 2), 9)
        assert found.fits
        assert bool(found.layout) == (own is named)
        assert found.lines(BATCH) == ['strategy = jd.MirroredStrategy(devices_per_replica=2, layout="auto")']
        strategy = automatic.applied(found)
        assert isinstance(strategy.extended.layouts, jd.experimental.AutomaticLayout) == (own is not named)


def test_large_slots_lie_in_slices_or_whole(tmp_path: Path) -> None:
    script = write(tmp_path)
    script.write_text(script.read_text().replace("(128, 128)", "(512, 512)").replace("(512, 128)", "(512, 512)"))
    trials = Trials(script, (), place("cpu:4", None, asked=False))
    slices, whole = (trials(Candidate(MIRRORED, BATCH, whole_slots=whole), 9) for whole in (False, True))
    assert (slices.sliced, whole.sliced) == (True, False)
    matrices = LAYERS * 512 * 512 * 4
    assert whole.held - slices.held == 2 * matrices * 3 // 4
    assert any("all-gather" in wait for wait in slices.waits)
    assert not any("all-gather" in wait for wait in whole.waits)
    small = Trials(write(tmp_path), (), place("cpu:4", None, asked=False))
    assert not small(Candidate(MIRRORED, BATCH), 9).sliced
    assert not small(Candidate(SHARDED, BATCH), 9).sliced


def test_nothing_is_added_up_without_an_optimizer(tmp_path: Path) -> None:
    script = write(tmp_path)
    text = script.read_text().replace('name=f"matrix_{i}")', 'name=f"matrix_{i}", aggregation="MEAN")')
    text = text.replace("optimizer = jd.Optimizer(optax.adam(0.1), matrices)", "pass")
    own = "for matrix, gradient in zip(matrices, gradients): matrix.assign_sub(gradient)"
    script.write_text(text.replace("optimizer.apply_gradients(gradients)", own))
    trials = Trials(script, (), place("cpu:2", None, asked=False))
    assert trials.optimizes
    assert trials.batch() == BATCH
    assert not trials.optimizes
    assert "no jd.Optimizer" in trials(Candidate(MIRRORED, BATCH, accumulate=2), 9).refusal
