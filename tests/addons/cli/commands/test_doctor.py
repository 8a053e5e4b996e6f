"""`jaxtribute doctor` as its user meets it."""

from collections.abc import Iterator

import pytest

from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.doctor import trial
from jaxtribute._src.addons.doctor.report import Finding, Level


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_a_healthy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "      devices: 8 x CPU (cpu)\n" in printed
    assert "fix:" not in printed


def test_errors_come_with_a_fix_and_an_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", "nonsense")
    assert main(["doctor", "--test"]) == 1
    printed = capsys.readouterr().out
    assert "ERROR cluster: TF_CONFIG is 'nonsense': it is no JSON" in printed
    assert "        fix: write {" in printed
    assert "all-reduce" not in printed


def test_the_test_comes_before_jax_starts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_: object, seconds: float) -> Iterator[Finding]:
        yield Finding(Level.GOOD, "test", f"{seconds} s")

    monkeypatch.setattr(trial, "check", check)
    assert main(["doctor", "--test", "--seconds", "3"]) == 0
    printed = capsys.readouterr().out
    assert "ok    test: 3.0 s\n" in printed
    assert printed.index("test:") < printed.index("devices:")


@pytest.mark.parametrize("well", [True, False])
def test_a_rehearsal_says_what_came_of_it(
    well: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from jaxtribute._src.addons.testing import rehearsal

    asked: list[object] = []

    def rehearse(script: str, arguments: list[str]) -> rehearsal.Rehearsal:
        asked.append((script, arguments))
        problem = "" if well else "no checkpoint. HINT: make a PreemptionCheckpointHandler"
        return rehearsal.Rehearsal(well, well, "/data/ckpt-3" if well else None, 3, problem, "the last lines\n")

    monkeypatch.setattr(rehearsal, "rehearse", rehearse)
    assert main(["doctor", "--preempt", "train.py", "--epochs", "3"]) == (0 if well else 1)
    assert asked == [("train.py", ["--epochs", "3"])]
    text = capsys.readouterr().out
    if well:
        assert "/data/ckpt-3 after 3 runs" in text
    else:
        assert "the last lines" in text
        assert "HINT" in text


def test_a_rehearsal_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--preempt"]) == 2
    assert "HINT" in capsys.readouterr().err
