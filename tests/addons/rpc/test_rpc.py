"""Calls between a server and its clients; the keys and addresses of both."""

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.addons.messaging import wire
from jaxtribute._src.addons.rpc.client import Client
from jaxtribute._src.addons.rpc.protocol import checked, endpoint, read_keys
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ClusterError, ClusterSpecError, DeadlineError
from processes import run_python

rpc = jd.experimental.rpc
LOOPBACK = "127.0.0.1:0"
STARTED, GO_ON = threading.Event(), threading.Event()


@tf.function(input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int32)])
def multiply(a: Any, b: Any) -> Any:
    return a * b


def fail() -> None:
    raise ValueError("boom")


def wait() -> str:
    STARTED.set()
    assert GO_ON.wait(20)
    return "at last"


def give_odd_text() -> Any:
    return {ODD: [ODD]}


def fail_oddly() -> None:
    raise OSError(2, "no such file", ODD)


def leave() -> None:
    sys.exit(0)


def fall_silent() -> None:
    raise Mute


class Mute(BaseException):
    def __str__(self) -> str:
        raise SystemExit(1)


ODD = os.fsdecode(b"caf\xe9.txt")
"""The name of a file that is not UTF-8: a string with a lone surrogate."""
HOSTILE: dict[str, Any] = {
    "give_odd_text": give_odd_text,
    "fail_oddly": fail_oddly,
    "leave": leave,
    "fall_silent": fall_silent,
    "large": lambda: np.array([2**40]),
    "keyed": lambda: {np.int64(1): 2},
    "deep": lambda: nested(1000),
}


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


FUNCTIONS = {**HOSTILE, "multiply": multiply, "fail": fail, "wait": wait, "echo": lambda *args: args, "thing": object}


@pytest.fixture(scope="module")
def address() -> Generator[str]:
    with rpc.Server.create("grpc", LOOPBACK) as server:
        for name, function in FUNCTIONS.items():
            server.register(name, function)
        server.start()  # again does nothing
        yield server.address


@pytest.fixture
def client(address: str) -> Generator[Any]:
    with rpc.Client.create("grpc", address, "test", timeout_in_ms=20_000) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_stays(address: str, no_leaks: None, same_environment: None) -> None:
    """The server's thread and port are there before each test and after it."""


class TestCalls:
    def test_tensorflows_example(self, client: Any) -> None:
        a, b = tf.constant(2, dtype=tf.int32), tf.constant(3, dtype=tf.int32)
        result = client.call(args=[a, b], method_name="multiply", output_specs=tf.TensorSpec((), tf.int32))
        assert isinstance(result, rpc.StatusOrResult)
        assert result.is_ok()
        assert isinstance(result.get_value(), jax.Array)
        assert result.get_value() == 6
        assert result.get_error() == (0, "")
        assert client.multiply(a, b).get_value() == 6
        assert client.multiply_blocking(a, b) == 6

    def test_values_of_every_kind_keep_their_structure(self, client: Any) -> None:
        sent = (1, 2.5, "é", b"\0", None, True, [(jnp.ones(3),)], {"a": np.zeros((2, 0), np.int8), "b": np.ones(2000)})
        back = client.echo_blocking(*sent)
        assert jax.tree.structure(back) == jax.tree.structure(sent)
        for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(sent), strict=True):
            np.testing.assert_array_equal(one, other)

    @settings(max_examples=20, deadline=None)
    @given(st.data())
    def test_arrays_come_as_they_were(self, address: str, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from([np.float32, np.int32, np.uint8, np.bool_, jnp.bfloat16, np.complex64]))
        shape = data.draw(arrays.array_shapes(min_dims=0, min_side=0, max_side=30))
        sent = np.random.default_rng(0).normal(size=shape).astype(kind)
        with rpc.Client.create("zmq", address) as client:
            (back,) = client.echo_blocking(sent)
        assert back.dtype == sent.dtype
        np.testing.assert_array_equal(np.asarray(back), sent)

    def test_results_may_be_looked_at_in_any_order_and_by_other_threads(self, client: Any) -> None:
        results = [client.multiply(number, 2) for number in range(20)]
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(int(result.get_value()) for result in results[::2]))
        thread.start()
        assert [int(result.get_value()) for result in reversed(results)] == [
            2 * number for number in reversed(range(20))
        ]
        thread.join(20)
        assert found == [2 * number for number in range(0, 20, 2)]

    def test_names_are_those_of_the_server(self, client: Any) -> None:
        assert "'test'" in repr(client)
        with pytest.raises(AttributeError, match=r"no 'divide'; the server had .*'multiply'"):
            client.divide(1, 2)


class TestFailures:
    @pytest.mark.parametrize(
        ("method", "args", "code", "words"),
        [
            ("divide", (), 5, "there is no 'divide'"),
            ("fail", (), 2, "'fail' failed: ValueError: boom"),
            ("multiply", (1,), 2, "'multiply' failed"),
            ("thing", (), 3, "not made of arrays"),
        ],
    )
    def test_what_goes_wrong_there_is_told_here(
        self, client: Any, method: str, args: tuple[Any, ...], code: int, words: str
    ) -> None:
        result = client.call(method, args)
        assert not result.is_ok()
        assert result.get_error()[0] == code
        assert words in result.get_error()[1]
        with pytest.raises(ClusterError, match=words):
            result.get_value()

    def test_a_call_that_takes_too_long(self, client: Any) -> None:
        GO_ON.clear()
        late = client.call("wait", timeout_in_ms=1)
        with pytest.raises(DeadlineError, match=r"'wait' within 0.001 s.*HINT"):
            late.get_value()
        assert late.get_error()[0] == 4
        assert STARTED.wait(20)
        GO_ON.set()
        assert client.multiply_blocking(2, 2) == 4, "the late answer was taken for another"
        assert not late.is_ok()

    def test_no_server(self) -> None:
        with pytest.raises(DeadlineError, match=r"no answer from 127.0.0.1:9 to a client"):
            rpc.Client.create("grpc", "127.0.0.1:9", timeout_in_ms=20)

    @pytest.mark.parametrize(
        "frames", [[b"nonsense"], wire.pack({"id": 1}), wire.pack({"id": 1, "method": [], "args": 3})]
    )
    def test_a_stranger_who_sends_nonsense_stops_nobody(self, client: Any, address: str, frames: list[Any]) -> None:
        with zmq.Context(io_threads=1) as context, context.socket(zmq.DEALER) as socket:
            socket.connect(f"tcp://{address}")
            socket.send_multipart(frames)
            assert socket.poll(20_000)
            assert wire.unpack(socket.recv_multipart())[0]["code"] == 3
        assert client.multiply_blocking(2, 2) == 4

    def test_an_object_array_is_refused_and_not_unpickled(self, address: str) -> None:
        header: Any = msgpack.packb(
            {"id": 7, "method": "echo", "args": ["t", [["a"]]], "#": [["object", [1], b"x" * 8]]}
        )
        with zmq.Context(io_threads=1) as context, context.socket(zmq.DEALER) as socket:
            socket.connect(f"tcp://{address}")
            socket.send(header)
            assert socket.poll(20_000)
            assert wire.unpack(socket.recv_multipart())[0]["code"] == 3

    def test_what_cannot_be_sent_or_called(self, client: Any) -> None:
        with pytest.raises(ArgumentTypeError, match=r"'echo' cannot be sent.*HINT"):
            client.echo(object())
        with pytest.raises(ArgumentTypeError, match="HINT"):
            rpc.Server.create("grpc", LOOPBACK).register("one", 1)  # pyright: ignore[reportArgumentType]

    def test_an_address_that_is_taken(self, address: str) -> None:
        with pytest.raises(ClusterError, match=f"cannot listen at {address}.*HINT"):
            rpc.Server.create("grpc", address).start()


class TestHostile:
    def test_text_that_is_not_utf8(self, client: Any) -> None:
        assert client.give_odd_text_blocking() == {ODD: [ODD]}
        assert client.echo_blocking(ODD) == (ODD,)
        code, text = client.fail_oddly().get_error()
        assert code == 2
        assert repr(ODD) in text

    @pytest.mark.parametrize(
        ("method", "words"),
        [("leave", "SystemExit: 0"), ("fall_silent", "Mute: <no text"), ("keyed", "not made of"), ("deep", "not made")],
    )
    def test_no_function_ends_the_servers_thread(self, client: Any, method: str, words: str) -> None:
        code, text = client.call(method).get_error()
        assert code in (2, 3)
        assert words in text
        assert client.multiply_blocking(2, 3) == 6

    def test_integers_that_jax_cannot_hold_are_refused(self, client: Any) -> None:
        assert "does not fit int32" in client.large().get_error()[1]
        assert "does not fit int32" in client.echo(np.array([-(2**40)])).get_error()[1]
        assert client.echo_blocking(2**40) == (2**40,)

    def test_what_is_no_call_is_refused(self, client: Any, address: str) -> None:
        for wrong in (5, np.ones(2), "ab"):
            with pytest.raises(ArgumentTypeError, match=r"args is of type.*HINT"):
                client.call("echo", wrong)
        with pytest.raises(ArgumentTypeError, match="method_name is 3"):
            client.call(3)
        for wrong in cast("list[Any]", [-1, float("nan"), "1"]):
            with pytest.raises(ArgumentError, match=r"timeout_in_ms is.*HINT"):
                client.call("echo", timeout_in_ms=wrong)
            with pytest.raises(ArgumentError, match=r"timeout_in_ms is.*HINT"):
                rpc.Client.create("grpc", address, timeout_in_ms=wrong)
        with pytest.raises(ArgumentTypeError, match=r"method_name is 3.*HINT"):
            rpc.Server.create("grpc", LOOPBACK).register(3, abs)  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("number", [nested(600), "1", None, -1.5, {"a": 1}])
    def test_a_strangers_number_stops_nobody(self, client: Any, address: str, number: Any) -> None:
        def wrapped(inner: Any) -> bytes:
            return b"\x83\xa2id" + inner + b"\xa6method\xa4echo\xa4args\xc0"

        depth, inner = 0, number
        while isinstance(inner, list):
            depth, inner = depth + 1, inner[0]
        with zmq.Context(io_threads=1) as context, context.socket(zmq.DEALER) as socket:
            socket.connect(f"tcp://{address}")
            socket.send(wrapped(b"\x91" * depth + cast("bytes", msgpack.packb(inner))))
            assert socket.poll(20_000)
            assert wire.unpack(socket.recv_multipart())[0]["code"] == 3
        assert client.multiply_blocking(2, 2) == 4

    def test_a_server_that_ends_is_told_of_at_once(self) -> None:
        GO_ON.clear()
        STARTED.clear()
        server = rpc.Server.create("grpc", LOOPBACK)
        server.register("wait", wait)
        server.register("one", lambda: 1)
        server.start()
        with rpc.Client.create("grpc", server.address, timeout_in_ms=60_000) as client:
            first, behind = client.call("wait"), client.call("one")
            assert STARTED.wait(20)
            begun = time.monotonic()
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            GO_ON.set()
            stopping.join()
            codes = {first.get_error()[0], behind.get_error()[0]}
            assert codes <= {0, 14}, "14 is for a call that the server did not come to"
            assert time.monotonic() - begun < 30
        with pytest.raises(ClusterError, match=r"was closed.*HINT"):
            client.call("one")

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_if_the_servers_thread_ends_its_callers_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with (
            rpc.Server.create("grpc", LOOPBACK) as server,
            rpc.Client.create("grpc", server.address, timeout_in_ms=60_000) as client,
        ):
            monkeypatch.setattr("jaxtribute._src.addons.rpc.server._answer", lambda *_: sys.exit(3))
            begun = time.monotonic()
            result = client.call("anything")
            assert result.get_error()[0] == 14
            with pytest.raises(ClusterError, match=r"has ended, or the connection.*HINT"):
                result.get_value()
            assert time.monotonic() - begun < 30

    @pytest.mark.parametrize(
        "answer",
        [
            [b"\xc1"],
            wire.pack({"id": 2, "value": 7}),
            wire.pack({"id": 2, "value": ["a"]}),
            wire.pack({"id": 2, "code": 9}),
        ],
    )
    def test_a_server_that_answers_nonsense(self, answer: list[Any]) -> None:
        with zmq.Context(io_threads=1) as context, context.socket(zmq.ROUTER) as socket:
            port = socket.bind_to_random_port("tcp://127.0.0.1")

            def serve() -> None:
                replies = [wire.pack({"id": 1, "value": ["l", [["v", "f"]]]}), answer]
                for reply in replies:
                    identity = socket.recv_multipart()[0]
                    socket.send_multipart([identity, *reply])

            thread = threading.Thread(target=serve)
            thread.start()
            with rpc.Client.create("grpc", f"127.0.0.1:{port}", timeout_in_ms=1000) as client:
                result = client.call("f")
                with pytest.raises((ClusterError, DeadlineError)):
                    result.get_value()
            thread.join()


class TestKeys:
    def test_only_those_who_have_them_are_heard(self, tmp_path: Path) -> None:
        mine, theirs = tmp_path / "mine", tmp_path / "theirs"
        for path in (mine, theirs):
            rpc.make_keys(path)
        with rpc.Server.create("grpc", LOOPBACK, keys=mine) as server:
            server.register("echo", lambda value: value)
            with rpc.Client.create("grpc", server.address, keys=mine) as client:
                assert client.echo_blocking(3) == 3
            for wrong in (theirs, None):
                with pytest.raises(DeadlineError, match="the same keys"):
                    rpc.Client.create("grpc", server.address, timeout_in_ms=300, keys=wrong)

    def test_a_server_that_has_refused_the_keys_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        rpc.make_keys(tmp_path / "keys")
        with rpc.Server.create("grpc", LOOPBACK, keys=tmp_path / "keys") as server:
            address = checked("grpc", server.address, None)
            with contextlib.closing(Client(address, "", 300, None)) as client:
                socket, end = client._socket, time.monotonic() + 20  # pyright: ignore[reportPrivateUsage]
                while socket.poll(0, zmq.POLLOUT) and time.monotonic() < end:
                    time.sleep(0.01)
                with pytest.raises(DeadlineError, match="the same keys"):
                    client.call("echo").get_value()

    def test_their_file_is_private_and_never_replaced(self, tmp_path: Path) -> None:
        rpc.make_keys(tmp_path / "keys")
        assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600
        with pytest.raises(FileExistsError):
            rpc.make_keys(tmp_path / "keys")

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize(
        "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: None]
    )
    def test_what_is_no_file_of_keys(self, tmp_path: Path, make: Callable[[Path], None]) -> None:
        make(tmp_path / "keys")
        with pytest.raises(ArgumentError, match=r"keys holds no keys.*HINT"):
            read_keys(tmp_path / "keys")

    @pytest.mark.parametrize("text", ["", "[]", '{"called_public": "x"}', '{"called_public": 1}', "[" * 50_000])
    def test_a_file_without_keys(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "keys").write_text(text)
        with pytest.raises(ArgumentError, match=r"holds no keys.*HINT"):
            read_keys(tmp_path / "keys")

    @pytest.mark.parametrize("make", [rpc.Server.create, rpc.Client.create])
    def test_other_machines_need_them(self, make: Any) -> None:
        for address in ("10.0.0.1:2222", "0.0.0.0:2222", "example.org:2222"):
            with pytest.raises(ArgumentError, match=r"reached from other machines.*HINT.*make_keys"):
                make("grpc", address)
        with pytest.raises(ArgumentError, match=r"'http'.*HINT"):
            make("http", LOOPBACK)
        with pytest.raises(ClusterSpecError, match="HINT"):
            make("grpc", "localhost")

    def test_addresses_as_zeromq_names_them(self) -> None:
        names = [endpoint(checked("grpc", address, None)) for address in ("localhost:1", "127.0.0.2:3", "[::1]:4")]
        assert names == ["tcp://127.0.0.1:1", "tcp://127.0.0.2:3", "tcp://[::1]:4"]


@pytest.mark.slow
def test_a_program_that_stops_nothing_ends() -> None:
    program = """
import jaxtribute as jd
rpc = jd.experimental.rpc
server = rpc.Server.create("grpc", "127.0.0.1:0")
server.register("one", lambda: 1)
server.start()
client = rpc.Client.create("grpc", server.address)
print(client.one_blocking())
"""
    assert run_python(program) == "1\n"


@pytest.mark.slow
def test_without_its_libraries_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules["zmq"] = sys.modules["keras"] = None
import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute._src.addons.compat.catalog.lookup import exists
for find in (lambda: jd.experimental.rpc, lambda: tf.keras):
    try:
        find()
    except jd.errors.MissingLibraryError as error:
        print(error)
assert exists("jd.experimental.rpc.Client")
assert not exists("jd.experimental.nonsense")
"""
    rpc_line, keras_line = run_python(program).strip().split("\n")
    assert rpc_line == "jd.experimental.rpc needs zmq. HINT: pip install -e '.[rpc]' in a clone."
    assert keras_line == "tf.keras needs keras. HINT: pip install -e '.[keras]' in a clone."
