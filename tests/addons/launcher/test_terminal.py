"""Readers of a job's output that stall, are slow, have gone or cannot take it: they hold up nothing but their lines."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.launcher import output, terminal
from jaxtribute._src.addons.launcher.launch import launch
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.launcher.output import RankOutput
from jaxtribute._src.addons.launcher.terminal import Sink

KINDS = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL SEGV USR2 ALRM TERM".split()
FLOOD = "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -c 3000000"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small buffers and short waits, so that a stall is one soon."""
    monkeypatch.setattr(terminal, "MOST", 1 << 19)
    monkeypatch.setattr(terminal, "ROOM_S", 0.05)
    monkeypatch.setattr(terminal, "END_S", 0.1)


def await_threads() -> None:
    """Waits for the threads that write, which end when their reader has gone."""
    end = time.monotonic() + 60
    while any(thread.name.startswith("write to") for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)


@contextlib.contextmanager
def output_to(descriptor: int) -> Generator[None]:
    """Gives this process another standard output for a while."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(descriptor, 1)
    os.close(descriptor)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def nobody_reads() -> Generator[None]:
    """Lets standard output be a pipe that nobody reads."""
    reader, writer = os.pipe()
    try:
        with output_to(writer):
            yield
    finally:
        os.close(reader)
        await_threads()


def run(script: str, **options: object) -> int:
    return launch(Options(command=("sh", "-c", script), **options))  # pyright: ignore[reportArgumentType]


def gathered(write: Callable[[Sink], object], *, late: bool = False, blocking: bool = True) -> bytes:
    """What reaches the reader of a sink, who begins with it or once everything has been put."""
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    found: list[bytes] = []

    def read() -> None:
        while data := os.read(reader, 1 << 16):
            found.append(data)

    thread = threading.Thread(target=read)
    if not late:
        thread.start()
    sink = Sink(writer, lambda _: None)
    write(sink)
    sink.close()
    if late:
        thread.start()
    sink.thread.join(60)
    os.close(writer)
    thread.join(60)
    os.close(reader)
    return b"".join(found)


@pytest.mark.slow
def test_a_reader_who_stalls_does_not_keep_a_job_from_its_end(impatient: None, tmp_path: Path) -> None:
    with nobody_reads():
        assert run(FLOOD, workers=2, log_dir=tmp_path) == 0
    # The files have everything.
    for rank in range(2):
        assert (tmp_path / f"rank-{rank}.log").stat().st_size == 3000000


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_that_ends_a_rank_ends_the_job_in_time(kind: str, impatient: None) -> None:
    start = time.monotonic()
    script = f"ulimit -c 0; {FLOOD}; case $TF_CONFIG in *'index\": 1'*) kill -{kind} $$;; esac; sleep 600"
    with nobody_reads():
        assert run(script, workers=2, grace_s=0.2) == 128 + signal.Signals[f"SIG{kind}"]
    assert time.monotonic() - start < 60


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [("TERM", 75), ("HUP", 75), ("QUIT", 131), ("INT", 130)])
def test_signals_reach_the_ranks_of_a_job_that_nobody_reads(
    kind: str, code: int, impatient: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # It prints without end, and saves when it is told to go.
    save = "trap 'echo saved > saved; exit 75' TERM; echo > ready; while :; do echo xxxxxxxxxxxxxxxx; done"

    def send() -> None:
        end = time.monotonic() + 120
        while not Path("ready").exists() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.Signals[f"SIG{kind}"])

    sender = threading.Thread(target=send)
    with nobody_reads():
        sender.start()
        assert run(save, grace_s=30.0 if code == 75 else 0.2) == code
        sender.join()
    assert Path("saved").exists() == (code == 75)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "words"), [("/dev/full", "No space left on device"), ("", "Bad file descriptor")])
def test_output_that_cannot_be_written_is_told_once(place: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    # A file that is open for reading alone stands for one that was closed, as the command line sees to.
    with output_to(os.open(place, os.O_WRONLY) if place else os.open(os.devnull, os.O_RDONLY)):
        assert run(f"{FLOOD}; exit 4") == 4
    await_threads()
    told = capfd.readouterr().err.splitlines()
    # Whoever writes tells it, which may come after what is said of the job's end.
    (once,) = (line for line in told if words in line)
    assert "HINT" in once


@pytest.mark.slow
def test_a_log_that_cannot_be_written_is_told_once_and_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Full(FileIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "FileIO", Full)
    assert run("for i in 1 2 3 4 5 6; do echo $i; sleep 0.01; done", log_dir=tmp_path) == 0
    printed = capfd.readouterr()
    assert printed.out.count("\n") == 6
    assert printed.err.count("No space left on device") == 1
    assert "rank-0.log ends here" in printed.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "pipe", "folder"])
def test_a_log_that_cannot_be_made_is_told_before_anything_starts(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from jaxtribute._src.addons.cli.main import main

    place = tmp_path / "logs"
    if kind == "file":
        place.write_text("")
    else:
        place.mkdir()
        (os.mkfifo if kind == "pipe" else os.mkdir)(place / "rank-0.log")
    assert main(["launch", "--log-dir", str(place), "sh", "-c", "echo started"]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert f"--log-dir {place}" in printed.err
    assert printed.err.count("\n") == 1
    assert "HINT" in printed.err


@pytest.mark.slow
@pytest.mark.parametrize("text", ["nothing that a machine runs", "#!/no/such/program"])
def test_a_program_that_cannot_be_started_is_told_in_a_line(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from jaxtribute._src.addons.cli.main import main

    program = tmp_path / "program"
    program.write_text(text)
    program.chmod(0o755)
    assert main(["launch", str(program)]) == 2
    told = capfd.readouterr().err
    assert "rank 0 cannot be started" in told
    assert told.count("\n") == 1


def test_of_what_nobody_reads_the_last_is_kept_and_the_rest_is_told(impatient: None) -> None:
    def write(sink: Sink) -> None:
        for number in range(50000):
            sink.put(b"[0] ", b"%039d\n" % number)
            assert sink.held <= terminal.MOST + 200  # the line that says how much was left out

    lines = gathered(write, late=True).splitlines()
    (note,) = [place for place, line in enumerate(lines) if line.startswith(terminal.OWN)]
    left_out = int(lines[note].split()[2].replace(b",", b""))
    assert left_out == 40 * (50000 - (len(lines) - 1))
    assert [int(line[4:]) for line in lines[:note]] == list(range(note))
    assert [int(line[4:]) for line in lines[note + 1 :]] == list(range(50000 - (len(lines) - note - 1), 50000))


def test_a_reader_who_is_only_slow_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "MOST", 1 << 16)
    monkeypatch.setattr(terminal, "ROOM_S", 60.0)
    wanted = [b"%d\n" % number for number in range(30000)]

    def write(sink: Sink) -> None:
        for line in wanted:
            sink.put(None, line)

    assert gathered(write) == b"".join(wanted)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_wait_once_together_for_a_reader_who_stalls(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "MOST", 1 << 16)
    monkeypatch.setattr(terminal, "ROOM_S", 0.2)

    def write(sink: Sink) -> None:
        def say() -> None:
            for _ in range(100):
                sink.put(b"[0] ", b"x" * (1 << 14))
                time.sleep(0.001)  # lets the other ranks come between

        threads = [threading.Thread(target=say) for _ in range(ranks)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - start < 6

    assert b"left out" in gathered(write, late=True)


def test_a_file_that_does_not_block_is_waited_for() -> None:
    data = os.urandom(300000)
    assert gathered(lambda sink: sink.put(None, data), blocking=False) == data


PIECES = st.lists(st.tuples(st.sampled_from([b"[0] ", b"[1] ", terminal.OWN]), st.sampled_from([b"a", b"b\n", b"c"])))


@given(PIECES)
def test_parts_of_lines_are_joined_unless_another_speaks(pieces: list[tuple[bytes, bytes]]) -> None:
    found = gathered(lambda sink: [sink.put(prefix, data) for prefix, data in pieces])
    wanted, open_line = b"", None
    for prefix, data in pieces:
        if open_line not in (None, prefix):
            wanted += b"\n"
        if open_line != prefix:
            wanted += prefix
        wanted += data
        open_line = None if data.endswith(b"\n") else prefix
    assert found == wanted


LETTERS = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"]", b"[Gloo] Rank 0 is connected to 1\n"]))


@given(st.lists(st.tuples(st.integers(0, 2), LETTERS.map(b"".join)), max_size=20))
def test_each_ranks_lines_arrive_whole_with_its_prefix_and_in_order(fed: list[tuple[int, bytes]]) -> None:
    def write(sink: Sink) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(output, "write", sink.put)
            ranks = [RankOutput(b"[%d] " % rank, shown=True, log=None) for rank in range(3)]
            for rank, data in fed:
                ranks[rank].feed(data)
            for each in ranks:
                each.close()

    printed = gathered(write)
    for rank in range(3):
        said = b"".join(data for number, data in fed if number == rank)
        # Of a line that is drawn over its last state counts; what Gloo says at every start is left out.
        lines = (
            [line.rstrip(b"\r").rpartition(b"\r")[2] for line in said.removesuffix(b"\n").split(b"\n")] if said else []
        )
        wanted = [line for line in lines if not line.startswith(b"[Gloo] Rank 0 is connected")]
        prefix = b"[%d] " % rank
        assert [line[4:] for line in printed.split(b"\n") if line.startswith(prefix)] == wanted
    assert printed == b"" or printed.endswith(b"\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code", "told"),
    [("exit 0", 0, False), ("exit 4", 4, True), ("exec python3 -c 'raise ValueError' 2>&1", 1, False)],
)
def test_what_gloo_says_is_shown_where_a_rank_fails_without_a_traceback(
    end: str, code: int, told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = "[Gloo] Rank 0 is connected to 0 peer ranks"
    assert run(f"echo '{noise}'; echo word; {end}") == code
    printed = capfd.readouterr()
    assert printed.out.startswith("[0] word\n")
    assert (noise in printed.err) == told


@pytest.mark.slow
def test_quiet_is_silent_but_for_failures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = f"echo x >> {tmp_path}/starts; test $(wc -l < {tmp_path}/starts) = 3 || exit 4"
    for quiet in (False, True):
        (tmp_path / "starts").unlink(missing_ok=True)
        assert run(script, max_restarts=2, quiet=quiet) == 0
        told = capfd.readouterr().err
        assert told.count("rank 0 ended with exit code 4") == 2
        assert told.count("starts the job again") == (0 if quiet else 2)
    assert run("exit 75", max_preemptions=1, quiet=True) == 75
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("data", [b"x" * 1000, b"\r 50 % #####", b" 50 % #####\r", b"\r", b"\r\r\rx\r\r"])
def test_a_line_that_never_ends_needs_little_memory(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[bytes] = []
    monkeypatch.setattr(output, "write", lambda _, piece: printed.append(piece))
    rank = RankOutput(b"[0] ", shown=True, log=None)
    for _ in range(5000):
        rank.feed(data)
        assert sum(map(len, rank._rest)) <= 2 << 20  # pyright: ignore[reportPrivateUsage]
        assert len(rank._rest) <= 2000  # pyright: ignore[reportPrivateUsage]
    rank.feed(b"\n")
    rank.close()
    # A long line comes whole; of one that is drawn over and over its last state.
    assert b"".join(printed) == (data * 5000 + b"\n" if b"\r" not in data else data.strip(b"\r") + b"\n")
