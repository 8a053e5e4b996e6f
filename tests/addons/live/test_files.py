"""Records that survive kills, and what is read of them."""

import itertools
import json
import time
from pathlib import Path

import pytest

import jaxtribute as jd
import live_runs
from jaxtribute._src.addons.live.files import Lines, Tail, now_file, read_now, worker_file, write_now
from jaxtribute._src.addons.live.state import Run
from jaxtribute._src.addons.live.windows import bin_of, length_after, quantile, seconds_of
from live_runs import START


def test_a_line_that_a_kill_has_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = Lines(path)
    lines.write({"n": 1})
    lines.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"n":2,"text":"abc')
    tail = Tail(path)
    assert list(tail.new()) == [{"n": 1}]
    again = Lines(path)  # the program that is started again
    again.write({"n": 3})
    again.close()
    again.close()
    assert list(tail.new()) == [{"n": 3}]
    assert list(Tail(path).new()) == [{"n": 1}, {"n": 3}]


def test_a_line_in_two_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    tail = Tail(path)
    assert list(tail.new()) == []
    path.write_bytes(b'{"n":1}\n{"n":')
    assert list(tail.new()) == [{"n": 1}]
    with path.open("ab") as file:
        file.write(b"2}\n")
    assert list(tail.new()) == [{"n": 2}]


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_file_that_is_cut_anywhere_can_be_read(tmp_path: Path, cut: int) -> None:
    live_runs.running(tmp_path, 1, 20)
    path = worker_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[: -1 - cut])
    state = Run(tmp_path).state(START + 20)
    assert sum(state["goodput"].values()) == pytest.approx(state["wall"], rel=0.01)


def test_what_is_no_record_of_ours_is_left_out(tmp_path: Path) -> None:
    live_runs.running(tmp_path, 1, 20)
    path = worker_file(tmp_path, 0)
    wrong = (
        b"\xff\xfe", b"[]", b"null", b"1" * 5000, b"[" * 5000, b'{"k":"w"}', b'{"k":"w","t":"x","s":1,"b":{}}',
        b'{"k":"w","t":1,"s":0,"b":{}}', b'{"k":"w","t":1,"s":1,"b":{},"h":{"a":1}}', b'{"k":"start","t":null}',
        b'{"k":"devices"}', b'{"k":"fail"}', b'{"k":"save"}', b'{"k":{}}', b'{"k":"end","t":"never"}',
    )  # fmt: skip
    before = Run(tmp_path).state(START + 20)["steps"]
    path.write_bytes(path.read_bytes() + b"\n".join(wrong[:9]) + b"\n")
    assert Run(tmp_path).state(START + 20)["steps"] == before
    path.write_bytes(path.read_bytes() + b"\n".join(wrong) + b"\n")
    Run(tmp_path).state(START + 20)
    write_now(tmp_path / "worker-00000.now.json", {"t": 1, "window": {"s": "x"}})
    (tmp_path / "worker-abc.jsonl").write_bytes(b"{}")
    (tmp_path / "job.jsonl").write_bytes(b'{"k":"attempt end"}\n{"k":"job","t":[]}\n{"k":"over","code":"x"}\n')
    json.dumps(Run(tmp_path).state(START + 20), allow_nan=False)


def test_a_record_that_is_half_written_is_none(tmp_path: Path) -> None:
    path = now_file(tmp_path, 3)
    assert read_now(path) is None
    write_now(path, {"where": "a" * 100})
    write_now(path, {"where": "b"})
    assert read_now(path) == {"where": "b"}  # behind it lies the rest of the longer one
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"b", b"c", 1))
    assert read_now(path) is None
    path.write_bytes(whole[:8])
    assert read_now(path) is None


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(jd.errors.ArgumentError, match=r"there is no folder .*HINT"):
        Run(tmp_path / "absent")
    with pytest.raises(jd.errors.ArgumentError, match=r"holds no run. HINT: start one with `jaxtribute launch --run"):
        Run(tmp_path)


def test_windows_grow_with_the_run() -> None:
    lengths = [length_after(count) for count in range(3600 + 1800 * 9)]
    assert lengths[:3600] == [1] * 3600
    assert max(lengths) == 512
    assert all(b % a == 0 for a, b in itertools.pairwise(lengths))
    assert sum(lengths) > 1_800_000


def test_times_of_steps() -> None:
    for seconds in (2e-6, 1e-3, 0.05, 7.0, 1000.0):
        assert seconds_of(bin_of(seconds)) == pytest.approx(seconds, rel=0.023)
    bins = {bin_of(0.1): 98, bin_of(1.0): 2}
    assert quantile(bins, 0.5) == pytest.approx(0.1, rel=0.03)
    assert quantile(bins, 0.99) == pytest.approx(1.0, rel=0.03)
    assert quantile({}, 0.5) is None


def test_a_million_steps(tmp_path: Path) -> None:
    """Steps of 0.2 s, 55 hours, on 4 workers."""
    end = START
    for rank in range(4):
        worker = live_runs.Writer(tmp_path, rank, step_s=0.2)
        worker.start(START)
        end = worker.train(START, 200_000)
        worker.now(end, "step", end - 0.1)
        worker.close()
    live_runs.write_job(tmp_path, *live_runs.launched(workers=4))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 50e6
    run = Run(tmp_path)
    start = time.monotonic()
    state = run.state(end)
    assert time.monotonic() - start < 20  # as each look at the page takes, even here
    assert state["steps"] > 999_000
    assert len(json.dumps(state)) < 200_000
    assert state["step"]["p50"] == pytest.approx(0.2, rel=0.05)
    assert sum(state["goodput"].values()) == pytest.approx(state["wall"], rel=0.01)
