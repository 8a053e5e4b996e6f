"""Who speaks to machine 0, and who is sent away."""

import asyncio
import itertools
import json
import socket
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jaxtribute._src.addons.launcher import connection, follower, remote
from jaxtribute._src.addons.launcher.escalation import Signal
from jaxtribute._src.addons.launcher.follower import Follower
from jaxtribute._src.addons.launcher.node import ReservedPorts
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.launcher.remote import Meeting
from jaxtribute._src.core.cluster.addresses import Address
from jaxtribute.errors import ClusterError, DeadlineError


def free() -> Address:
    with ReservedPorts(1) as ports:
        return Address("127.0.0.1", ports.numbers[0])


KEY = b"0123456789abcdef"


def with_meeting(nodes: int, job: Callable[[Meeting, Address], Awaitable[Any]], key: bytes | None = None) -> Any:
    async def run() -> Any:
        address = free()
        meeting = Meeting(address, nodes, key)
        await meeting.open(5.0)
        try:
            return await asyncio.wait_for(job(meeting, address), 120)
        finally:
            await meeting.close(3)

    return asyncio.run(run())


@pytest.mark.parametrize("machine", [0, 2, -1, "1", None, True, 1.0])
def test_only_machines_of_the_job_are_let_in(machine: object, capsys: pytest.CaptureFixture[str]) -> None:
    async def knock(meeting: Meeting, address: Address) -> connection.Message | None:
        line = await connection.connect(address.host, address.port)
        line.send({"machine": machine})
        answer = await line.receive()
        await line.close()
        assert meeting.present == {}
        return answer

    answer = with_meeting(2, knock)
    assert f"machine {machine!r} of 2 is not expected" in answer["refused"]
    assert "127.0.0.1 was sent away" in capsys.readouterr().err


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[1]\n",
        b"\x80\x04.\n",
        b"x" * (2 * connection.LONGEST),
        b"",
        b"[" * 100_000 + b"\n",
        b'{"machine":' * 50_000 + b"\n",
        b"9" * 5000 + b"\n",
    ],
)
def test_noise_is_not_let_in(noise: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    async def shout(meeting: Meeting, address: Address) -> None:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(noise)
        if not noise:
            writer.write_eof()
        assert b"refused" in await reader.readline()
        writer.close()
        assert meeting.present == {}

    with_meeting(2, shout)
    assert "was sent away" in capsys.readouterr().err


@pytest.mark.parametrize("key", [None, KEY])
def test_strangers_fill_neither_the_terminal_nor_the_memory(
    key: bytes | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "STRANGERS", 5)

    async def crowd(meeting: Meeting, address: Address) -> None:
        for _ in range(12):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"[" * 50_000 + b"\n")
            writer.transport.abort()  # gone before it is answered
        silent = [await asyncio.open_connection(address.host, address.port) for _ in range(9)]
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
        await asyncio.wait(ended, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        for _, writer in silent:
            writer.close()
        await asyncio.gather(*ended, return_exceptions=True)
        line = await connection.connect(address.host, address.port, key)
        line.send({"machine": 1})
        while await line.receive() != {"welcome": True}:  # its place may still be taken by a stranger
            await line.close()
            line = await connection.connect(address.host, address.port, key)
            line.send({"machine": 1})
        assert set(meeting.present) == {1}
        await line.close()

    with_meeting(2, crowd, key)
    said = capsys.readouterr().err
    assert said.count("was sent away") == 5, said
    assert "others will be sent away silently" in said
    assert "Traceback" not in said


def follower_of(address: Address, **more: Any) -> Follower:
    return Follower(Options(command=("true",), nodes=2, node_rank=1, coordinator=str(address), **more))


async def ready(meeting: Meeting) -> None:
    while not any(node.addresses for node in meeting.present.values()):
        await asyncio.sleep(0.005)


def test_launchers_know_each_other_by_a_key() -> None:
    async def come(meeting: Meeting, address: Address) -> int:
        task = asyncio.ensure_future(follower_of(address, key=KEY).run())
        await ready(meeting)
        await meeting.close(3)
        return await task

    assert with_meeting(2, come, KEY) == 3


@pytest.mark.parametrize("key", [None, KEY])
def test_a_crowd_of_strangers_delays_a_machine_only(key: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "STRANGERS", 5)
    monkeypatch.setattr(remote, "HELLO_S", 0.5)
    monkeypatch.setattr(follower, "RETRY_S", 0.02)

    async def come(meeting: Meeting, address: Address) -> int:
        silent = [await asyncio.open_connection(address.host, address.port) for _ in range(9)]
        task = asyncio.ensure_future(follower_of(address, key=key).run())
        await asyncio.wait([task, asyncio.ensure_future(ready(meeting))], return_when=asyncio.FIRST_COMPLETED)
        await meeting.close(3)
        for _, writer in silent:
            writer.close()
        return await task

    assert with_meeting(2, come, key) == 3


def test_who_closes_each_connection_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "RETRY_S", 0.02)

    async def come() -> None:
        async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
            address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
            with pytest.raises(ClusterError, match=r"without a word.*HINT.*strangers"):
                await asyncio.wait_for(follower_of(address, join_timeout_s=0.3).run(), 60)

    asyncio.run(come())


@pytest.mark.parametrize(("here", "there"), [(KEY, None), (None, KEY), (KEY, KEY[::-1])])
def test_who_does_not_know_the_key_takes_no_part(
    here: bytes | None, there: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    async def come(meeting: Meeting, address: Address) -> None:
        with pytest.raises(ClusterError, match=r"HINT: .*give the same --key on all machines"):
            await follower_of(address, key=there).run()
        assert meeting.present == {}

    with_meeting(2, come, here)
    assert "was sent away" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["repeated", "altered", "left out", "sent back"])
def test_a_message_counts_once_in_its_place(change: str) -> None:
    """Somebody between two launchers can do no more than end the connection."""

    async def run() -> None:
        heard: list[Any] = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = connection.Line(reader, writer, KEY)
            heard.extend([await line.receive(), await line.receive()])
            line.send({"answer": 1})
            await line.close()

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            theirs, on = await asyncio.open_connection("127.0.0.1", port)
            writer.write(await theirs.readline())
            on.write(await reader.readline())
            first, second = await reader.readline(), await reader.readline()
            told = {
                "repeated": [first, first],
                "altered": [first, second.replace(b"2", b"3")],
                "left out": [second, second],
                "sent back": [first, second],
            }[change]
            on.writelines(told)
            answer = await theirs.readline()
            writer.write(second if change == "sent back" else answer)
            writer.close()
            on.close()

        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        middle = await asyncio.start_server(between, "127.0.0.1", 0)
        line = await connection.connect("127.0.0.1", middle.sockets[0].getsockname()[1], KEY)
        line.send({"n": 1})
        line.send({"n": 2})
        answer = await line.receive()
        await line.close()
        for one in (middle, server):
            one.close()
        assert answer is None if change == "sent back" else True
        expected = {"sent back": [{"n": 1}, {"n": 2}], "left out": [None, None]}.get(change, [{"n": 1}, None])
        assert heard == expected

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_machine_that_was_cut_off_comes_back_where_fewer_suffice(capsys: pytest.CaptureFixture[str]) -> None:
    async def come(meeting: Meeting, address: Address) -> int:
        task = asyncio.ensure_future(follower_of(address, min_workers=1).run())
        for _ in range(3):
            await ready(meeting)
            meeting.drop(meeting.present[1])
        await ready(meeting)
        await meeting.close(4)
        return await task

    assert with_meeting(2, come) == 4
    assert capsys.readouterr().err.count("tries to come back") == 3


def test_a_machine_comes_back_before_machine_0_has_noticed_that_it_was_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def come(meeting: Meeting, address: Address) -> int:
        task = asyncio.ensure_future(follower_of(address, min_workers=1).run())
        await ready(meeting)
        gone = meeting.present[1]
        meeting.present[1] = remote.RemoteNode(1, gone.line)  # which nobody takes out
        await gone.line.close()
        while "has come already" not in capsys.readouterr().err:
            await asyncio.sleep(0.01)
        del meeting.present[1]
        await ready(meeting)
        await meeting.close(4)
        return await task

    assert with_meeting(2, come) == 4


def test_who_says_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HELLO_S", 0.05)

    async def be_silent(meeting: Meeting, address: Address) -> None:
        line = await connection.connect(address.host, address.port)
        assert "refused" in (await line.receive() or {})
        await line.close()

    with_meeting(2, be_silent)


def test_a_machine_hears_how_the_job_ended() -> None:
    async def come(meeting: Meeting, address: Address) -> int:
        options = Options(command=("true",), nodes=2, node_rank=1, coordinator=str(address))
        task = asyncio.ensure_future(Follower(options).run())
        while not any(node.addresses for node in meeting.present.values()):
            await asyncio.sleep(0.005)
        assert next(iter(meeting.present.values())).addresses[0].startswith("127.0.0.1:")
        with pytest.raises(ClusterError, match=r"machine 0 at .* refused this one: machine 1 of 2 .* has come already"):
            await Follower(options).run()
        await meeting.close(3)
        return await task

    assert with_meeting(2, come) == 3


def test_a_machine_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = itertools.count(0, 0.1)  # each look at it takes a tenth of a second
    monkeypatch.setattr(follower, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(follower, "SPEAK_EVERY_S", 0.0)
    monkeypatch.setattr(follower, "RETRY_S", 0.02)
    address = free()
    options = Options(command=("true",), nodes=2, node_rank=1, coordinator=str(address), join_timeout_s=0.25)
    with pytest.raises(DeadlineError, match=f"machine 1 waited 0 s for machine 0 at {address}"):
        asyncio.run(Follower(options).run())
    assert f"machine 1 waits for machine 0 at {address}" in capsys.readouterr().err
    gone = Follower(options)
    gone.forward(Signal.SIGINT)
    gone.resize()
    gone.grow()
    with pytest.raises(SystemExit) as ended:
        asyncio.run(gone.run())
    assert ended.value.code == 130


def test_messages_are_lines_of_json() -> None:
    async def speak(meeting: Meeting, address: Address) -> None:
        del meeting
        heard: list[bytes] = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.readline())
            writer.close()

        server = await asyncio.start_server(listen, address.host, 0)
        port = server.sockets[0].getsockname()[1]
        line = await connection.connect(address.host, port)
        assert (line.own_host, line.peer_host) == ("127.0.0.1", "127.0.0.1")
        line.send({"a": [1, "b"]})
        assert await line.receive() is None
        await line.close()
        line.send({"too": "late"})
        server.close()
        assert [json.loads(each) for each in heard] == [{"a": [1, "b"]}]

    with_meeting(2, speak)


def test_a_machine_that_talks_nonsense_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    async def babble(meeting: Meeting, address: Address) -> None:
        line = await connection.connect(address.host, address.port)
        line.send({"machine": 1})
        assert await line.receive() == {"welcome": True}
        line.send({"ended": {"kind": "nonsense"}})
        assert await line.receive() is None
        await line.close()
        assert meeting.present == {}

    with_meeting(2, babble)
    assert "machine 1 said what no launcher says" in capsys.readouterr().err


def test_a_name_that_is_not_known_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "RETRY_S", 0.01)
    asked: list[str] = []
    look_up = socket.getaddrinfo

    def from_the_third_time(host: str, *args: Any, **more: Any) -> Any:
        if host != "pod-0.job":
            return look_up(host, *args, **more)
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror("not known")
        return look_up("127.0.0.1", *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", from_the_third_time)

    async def open_(patience_s: float) -> str:
        meeting = Meeting(Address("pod-0.job", free().port), 2)
        await meeting.open(patience_s)
        await meeting.close(0)
        return meeting.host

    assert asyncio.run(open_(20.0)) == "127.0.0.1"
    asked.clear()
    with pytest.raises(ClusterError, match=r"cannot listen at pod-0.job:\d+: not known"):
        asyncio.run(open_(0.0))
