"""Steps that islands take together, each island in a thread of this process, over real sockets."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.processes import free_ports

from jaxtribute._src.addons.elastic.exchange import Islands, change, teller
from jaxtribute._src.addons.elastic.membership import Island, View
from jaxtribute._src.addons.elastic.packing import Parcel
from jaxtribute._src.addons.launcher.certificates import write_certificates
from jaxtribute.errors import ArgumentError, ClusterError, DeadlineError


@contextmanager
def islands(count: int, **settings: Any) -> Generator[list[Islands]]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    settings = {"silent_s": 2.0, "timeout_s": 20.0} | settings
    with ThreadPoolExecutor(count) as pool:
        made = list(pool.map(lambda rank: Islands(Island(rank), addresses, **settings), range(count)))
    try:
        yield made
    finally:
        for island in made:
            island.close()


def together(made: list[Islands], body: Callable[[Islands], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(made)) as pool:
        return list(pool.map(body, made))


def summing(island: Islands, *arrays: Any) -> list[Any]:
    return island.step(lambda _: island.sum([np.asarray(array) for array in arrays], "sum"))


def test_the_sum_of_an_island_alone_is_its_array_on_its_device() -> None:
    given = jnp.arange(3.0)
    with islands(1) as (island,):
        assert island.step(lambda _: island.begin_sum([given], "sum")())[0] is given


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_sums_are_the_same_bits_everywhere(count: int) -> None:
    chance = np.random.default_rng(0)
    shapes = [(), (3,), (0, 2), (40, 7), (300, 100), (1000, 1001)]
    given = [[chance.normal(size=shape).astype("float32") for shape in shapes] for _ in range(count)]
    with islands(count) as made:
        sums = together(made, lambda island: summing(island, *given[island.me.rank], np.int32(island.me.rank)))
        assert [island.committed for island in made] == [1] * count
    for place, shape in enumerate(shapes):
        expected = given[0][place].copy()
        for other in given[1:]:
            expected = expected + other[place]
        for own in sums:
            assert own[place].shape == shape
            np.testing.assert_array_equal(own[place], expected, strict=True)
    assert all(own[-1] == sum(range(count)) for own in sums)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "complex64"])
def test_sums_of_other_dtypes(dtype: str) -> None:
    import ml_dtypes  # noqa: F401  # pyright: ignore[reportUnusedImport]  (NumPy knows bfloat16 by it)

    with islands(2) as made:
        sums = together(made, lambda island: summing(island, np.ones(5, dtype)))
    for (total,) in sums:
        assert total.dtype == dtype
        np.testing.assert_array_equal(total, np.full(5, 2, dtype))


@pytest.mark.parametrize("killed", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_the_others_go_on_when_some_die_between_steps(killed: tuple[int, ...]) -> None:
    with islands(4) as made:
        together(made, lambda island: summing(island, 1))
        for rank in killed:
            made[rank].close()
        left = [island for island in made if island.me.rank not in killed]
        start = time.monotonic()
        sums = together(left, lambda island: summing(island, 10**island.me.rank))
        took = time.monotonic() - start
        assert [int(total) for (total,) in sums] == [sum(10**island.me.rank for island in left)] * len(left)
        assert [island.committed for island in left] == [2] * len(left)
    assert took < 3.0


class Stopped(Exception):  # noqa: N818
    """Stands for the end of a process."""


def tried(island: Islands, body: Callable[[Islands, View], Any]) -> Any:
    """A step of an island; None of one that has stopped in it."""
    try:
        return island.step(lambda view: body(island, view))
    except Stopped:
        return None


@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_step_is_whole_or_done_again_when_one_dies_in_it(moment: str) -> None:
    tries: list[tuple[int, View]] = []

    def body(island: Islands, view: View) -> list[int]:
        rank = island.me.rank
        tries.append((rank, view))
        dies = rank == 0
        if dies and moment == "before":
            island.close()
            raise Stopped
        first = island.sum([np.asarray(1)], "first")
        if dies and moment == "between":
            island.close()
            raise Stopped
        second = island.sum([np.asarray(10)], "second")
        if dies:
            island.close()
            raise Stopped
        return [int(first[0]), int(second[0])]

    with islands(3) as made:
        results = together(made, lambda island: tried(island, body))
        assert results[1] == results[2]
        # What the dead island has sent may be there in time for all of them: then they need not do it again.
        assert results[1] in ([[3, 30], [2, 20]] if moment == "after" else [[2, 20]])
        assert results[0] is None
        assert [island.committed for island in made[1:]] == [1, 1]
        assert made[1].view == View(1, (Island(1), Island(2)))


@pytest.mark.parametrize("size", [1, 1 << 19])
def test_a_step_whose_sums_are_begun_is_done_again_when_one_dies_in_it(size: int) -> None:
    """Of two sums, of which large ones are made in parts, an island has begun the first and then dies."""

    def body(island: Islands, view: View) -> list[float]:
        begun = [island.begin_sum([np.full(size, 1.0, "f4")], "first")]
        if island.me.rank == 0:
            island.close()
            raise Stopped
        begun.append(island.begin_sum([np.full(size, 10.0, "f4")], "second"))
        island.move()
        return [float(finish()[0].sum()) for finish in begun]

    with islands(3) as made:
        assert together(made, lambda island: tried(island, body)) == [
            None,
            [2.0 * size, 20.0 * size],
            [2.0 * size, 20.0 * size],
        ]
        assert [island.committed for island in made[1:]] == [1, 1]


def test_random_deaths_lose_and_double_nothing() -> None:
    """Each survivor's sums, step by step, are those of the others; every step has all of those who were in it."""
    chance = np.random.default_rng(5)
    with islands(4) as made:
        ends = {int(rank): int(step) for rank, step in zip(chance.permutation(4)[:3], (7, 7, 19), strict=True)}
        seen: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(4)}

        def run(island: Islands) -> None:
            rank = island.me.rank
            for step in range(30):
                if ends.get(rank) == step:
                    threading.Timer(0.002 * rank, island.close).start()
                try:
                    total, members = island.step(
                        lambda view: (island.sum([np.asarray(1 << 8 * island.me.rank)], "x")[0], len(view.members))
                    )
                except ClusterError:
                    assert rank in ends
                    return
                seen[rank].append((int(total), members))

        together(made, run)
    (last,) = {0, 1, 2, 3} - ends.keys()
    assert len(seen[last]) == 30
    for total, members in seen[last]:
        assert total.bit_count() == members
    for rank in ends:
        assert seen[rank] == seen[last][: len(seen[rank])]


def test_a_different_program_is_named() -> None:
    with islands(2) as made:

        def run(island: Islands) -> str:
            with pytest.raises(ClusterError, match="other values than island"):
                summing(island, np.zeros(1 + island.me.rank))
            return "told"

        assert together(made, run) == ["told"] * 2


def test_waits_for_a_living_island_end_with_its_name() -> None:
    with islands(2, timeout_s=1.0) as made, pytest.raises(DeadlineError, match=r"island 0 has waited 1 s for island 1"):
        summing(made[0], 1)


def test_too_few_islands_do_not_go_on() -> None:
    with islands(2, min_islands=2) as made:
        made[1].close()
        time.sleep(0.2)
        with pytest.raises(ClusterError, match="min_islands is 2"):
            together(made[:1] * 3, lambda island: summing(island, 1))


def test_an_island_that_does_not_come_is_named() -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with pytest.raises(DeadlineError, match=rf"for island 1 at {addresses[1]}"):
        Islands(Island(0), addresses, 1.0, 0.3)


def test_other_machines_need_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_MTLS_CERT_FILE", raising=False)
    with pytest.raises(ArgumentError, match="has no certificates"):
        Islands(Island(0), ["10.0.0.1:5000", "10.0.0.2:5000"], 1.0, 1.0)


def test_sums_are_encrypted_between_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in write_certificates(b"secret", tmp_path).items():
        monkeypatch.setenv(name, file)
    monkeypatch.setattr("jaxtribute._src.addons.elastic.links.Address.is_loopback", lambda _: False)
    large = np.arange(1 << 20, dtype=np.float32)
    with islands(3) as made:
        sums = together(made, lambda island: [summing(island, large, island.me.rank) for _ in range(3)])
        made[1].close()
        left = [made[0], made[2]]
        after = together(left, lambda island: summing(island, large)[0])
    for own in sums:
        for total, ranks in own:
            np.testing.assert_array_equal(total, 3 * large)
            assert ranks == 3
    for total in after:
        np.testing.assert_array_equal(total, 2 * large)


def test_what_is_much_is_sent_both_ways_at_once() -> None:
    """More than the system takes in: islands that send first and receive then would wait for each other for ever."""
    large = np.ones(4 << 20, np.float32)
    with islands(2) as made:
        for (total,) in together(made, lambda island: summing(island, large)):
            np.testing.assert_array_equal(total, 2 * large)


def test_who_fails_after_it_has_told_that_it_holds_a_step_leaves() -> None:
    """The others commit the step; whoever cannot finish it must not take another in its place."""

    def failing(island: Islands) -> Any:
        def body(_: View) -> int:
            (total,) = island.sum([np.asarray(1)], "sum")
            island.hold()
            if island.me.rank == 1:
                raise Stopped
            return int(total)

        return island.step(body)

    def run(island: Islands) -> Any:
        try:
            return failing(island), summing(island, 1)[0]
        except Stopped:
            with pytest.raises(ClusterError, match="has left the others"):
                summing(island, 1)
            return None

    with islands(3) as made:
        one, other, third = together(made, run)
    # If what it gave to the sum was under way when it left, the others do the step again; both of them alike.
    assert (one, other) in (((3, 2), None), ((2, 2), None))
    assert third == one


def test_parcels_join_small_arrays_of_a_dtype() -> None:
    parcel = Parcel([np.zeros(2, "f4"), np.zeros(1 << 20, "f4"), np.zeros(3, "f4"), np.zeros(1, "i4")], "x")
    assert [len(frame) for frame in parcel.frames] == [64, 4 << 20, 0, 20, 44, 4, 60]


def test_the_slowest_island_is_named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtribute._src.addons.elastic.waits._EVERY_S", 0.5)

    def run(island: Islands) -> int:
        for _ in range(12):
            if island.me.rank == 1:
                time.sleep(0.1)
            summing(island, 1)
        return island.again

    with islands(3) as made, caplog.at_level("WARNING"):
        assert together(made, run) == [0, 0, 0]
        assert [island.view.number for island in made] == [0, 0, 0]
    named = [record.getMessage() for record in caplog.records]
    assert named
    for text in named:
        assert re.match(r"island [02] has waited \d+\.\d s of the last \d+\.\d s for island 1, which is slower", text)


GROWTH = 8 << 20
"""Bytes that threads of the first lives may still take for themselves: each new one has memory of its own."""
LIVES = 50 if os.environ.get("JAXTRIBUTE_ALL_CASES") else 8


def test_a_hundred_views_leave_nothing_behind() -> None:
    """Of an island that dies and comes back again and again no descriptor, thread, message or memory is kept."""

    def taken(island: Islands) -> View:
        view, _ = island.step(lambda view: (view, island.sum([np.ones(20_000)], "sum")))
        island.journal.append("step", view, None)
        return view

    def back(island: Islands) -> None:
        while island.newcomer is not None:
            island.newcomer.next("step", None)
        assert len(taken(island).members) == 2

    def here() -> tuple[int, int, int]:
        links: Any = first._links  # pyright: ignore[reportPrivateUsage]
        inbox: Any = first._mail._inbox  # pyright: ignore[reportPrivateUsage]
        connections = len(links._outgoing) + len(links._incoming) + len(inbox)
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), connections

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    settings: Any = {"silent_s": 20.0, "timeout_s": 60.0}
    with islands(2, **settings) as made, ThreadPoolExecutor(1) as pool:
        first, second = made
        links: Any = first._links  # pyright: ignore[reportPrivateUsage]
        addresses = [str(address) for address in links._addresses]
        together(made, taken)
        kept: list[tuple[int, int, int]] = []
        memory: list[int] = []
        for life in range(1, LIVES + 1):
            second.close()
            assert len(taken(first).members) == 1
            second = Islands(Island(1, life), addresses, **settings)
            joined = pool.submit(back, second)
            end = time.monotonic() + 60.0
            while len(taken(first).members) < 2:
                assert time.monotonic() < end, "the second island is not back"
            joined.result(60.0)
            kept.append(here())
            memory.append(resident())
        second.close()
        assert first.view.number >= 2 * LIVES
    # Connections and threads of a life may still be about to begin, or to end.
    before = map(max, zip(*kept[: LIVES // 2], strict=True))
    assert all(late <= early + 3 for early, late in zip(before, kept[-1], strict=True)), kept
    print(f"after 3 and {LIVES} lives: {kept[2]} and {kept[-1]}, {(memory[-1] - memory[2]) >> 10} KiB more")
    assert memory[-1] - memory[2] < GROWTH, memory


@pytest.mark.parametrize(
    ("before", "after", "first", "said"),
    [
        ("0 1 2", "0 1", 0, "island 2 is gone; islands 0, 1 train together from here on"),
        ("0 1", "1", 1, "island 0 is gone; island 1 trains on alone"),
        ("0 1 2 3", "3", 3, "islands 0, 1, 2 are gone; island 3 trains on alone"),
        ("1", "0' 1", 1, "island 0 is there; islands 0, 1 train together from here on"),
        ("2", "0' 1' 2", 2, "islands 0, 1 are there; islands 0, 1, 2 train together from here on"),
        ("0 1 2", "0' 1", 1, "islands 0, 2 are gone; island 0 is there; islands 0, 1 train together from here on"),
        ("", "0' 1'", None, "islands 0, 1 train together from here on"),
    ],
)
def test_a_change_is_told_once_with_who_is_gone_and_who_has_come(
    before: str, after: str, first: int | None, said: str
) -> None:
    def view(number: int, names: str) -> View:
        return View(number, tuple(Island(int(name[0]), name.count("'")) for name in names.split()))

    told = teller(view(1, before), view(2, after))
    assert (told and told.rank) == first
    assert change(view(1, before), view(2, after)) == f"{said} (view 2)"
