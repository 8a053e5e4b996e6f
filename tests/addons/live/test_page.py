"""The page in a browser: Debian's Chromium, without a window."""

import shutil
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import live_runs
from jaxtribute._src.addons.live import server
from jaxtribute._src.addons.live.state import Run
from live_runs import START

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><img src=x onerror=document.title='taken'>\x1b[2J\x00\u202e&<b>" + "W" * 400
WIDE, NARROW = (1280, 900), (390, 844)

playwright: Any = pytest.importorskip("playwright.sync_api")
uvicorn: Any = pytest.importorskip("uvicorn")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]


@contextmanager
def served(directory: Path, now: float) -> Generator[str]:
    """The address of the page of a run, as it is at a moment."""
    run = Run(directory)
    state = run.state
    setattr(run, "state", lambda: state(now))  # noqa: B010
    application = server.application(run, "127.0.0.1", None)
    listener = socket.create_server(("127.0.0.1", 0))
    found = uvicorn.Server(uvicorn.Config(application, log_level="warning", access_log=False))
    thread = threading.Thread(target=lambda: found.run(sockets=[listener]))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        found.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


def opened(browser: Any, address: str, size: tuple[int, int] = WIDE, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page that is ready, and the errors that it showed."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: errors.append(request.url) if not request.url.startswith(address) else None)
    page.goto(address)
    page.wait_for_selector("body[data-ready]", timeout=60_000)
    return page, [error for error in errors if not error.startswith("data:")]


def test_sixty_four_workers_wide_and_narrow_light_and_dark(browser: Any, tmp_path: Path) -> None:
    now = live_runs.eventful(tmp_path)
    with served(tmp_path, now) as address:
        colours = set[str]()
        for size in (WIDE, NARROW):
            for scheme in ("light", "dark"):
                page, errors = opened(browser, address, size, scheme)
                assert errors == []
                assert page.evaluate("document.documentElement.scrollWidth") <= size[0]  # nothing sticks out
                assert page.locator("#workers tbody tr").count() == 64
                assert page.locator("#grid span").count() == 64
                first = page.locator("#workers tbody tr").first.inner_text()
                assert first.startswith("17")  # the one that does what nobody else does
                assert "waits for input" in first
                assert "for worker 17, for its input" in page.locator("#notices").inner_text()
                assert "was killed by SIGKILL" in page.locator("#events").inner_text()
                colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
                page.context.close()
        assert len(colours) == 2


def test_parameter_servers(browser: Any, tmp_path: Path) -> None:
    now = live_runs.with_servers(tmp_path)
    with served(tmp_path, now) as address:
        for size in (WIDE, NARROW):
            page, errors = opened(browser, address, size)
            assert errors == []
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            assert page.locator("#queue").inner_text().startswith("60\nclosures queued")
            assert "not there: worker 3" in page.locator("#coordinator").inner_text()
            assert page.locator("#tasks tbody tr").count() == 2
            assert "3.22 GB" in page.locator("#tasks tbody tr").first.inner_text()
            assert "3.00" in page.locator("#stale-workers tbody tr").first.inner_text()
            assert "waits for the servers" in page.locator("#workers").inner_text()
            assert "not there, as the coordinator says" in page.locator("#workers tbody tr").last.inner_text()
            page.context.close()


def loading(browser: Any, address: str) -> float:
    """Seconds from the request to a page that shows everything, by the browser's clock, the shortest of five."""
    times: list[float] = []
    for _ in range(5):
        page, errors = opened(browser, address)
        times.append(page.evaluate("performance.getEntriesByName('ready')[0].startTime") / 1e3)
        assert errors == []
        page.context.close()
    return min(times)


@live_runs.on_a_quiet_machine
def test_it_loads_in_a_second_after_a_million_steps(browser: Any, tmp_path: Path) -> None:
    end = START
    for rank in range(4):
        worker = live_runs.Writer(tmp_path, rank, step_s=0.2)
        worker.start(START)
        end = worker.train(START, 200_000)
        worker.now(end, "step", end - 0.1)
        worker.close()
    live_runs.write_job(tmp_path, *live_runs.launched(workers=4))
    with served(tmp_path, end) as address:
        seconds = loading(browser, address)
    assert seconds < 1.0


def test_hostile_names_are_text(browser: Any, tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 1, 20)
    worker = live_runs.Writer(tmp_path, 0)
    worker.start(START, host=HOSTILE, program=HOSTILE)
    worker.train(START, 20)
    worker.add("fail", START + 2, trace=f"Traceback\n{HOSTILE}")
    worker.add("write start", START + 3, path=HOSTILE)
    worker.add("write end", START + 4, path=HOSTILE)
    worker.now(now, "save", now - 1, where=HOSTILE, **{"for": HOSTILE})
    worker.close()
    live_runs.write_job(tmp_path, *live_runs.launched(command=HOSTILE))
    with served(tmp_path, now) as address:
        page, errors = opened(browser, address)
        assert errors == []
        assert page.locator("img").count() == 0
        assert page.locator("b").count() == page.locator(".figure b").count()
        assert "taken" not in page.title()
        assert "onerror=document.title='taken'>" in page.locator("#command").inner_text()
        assert "onerror=document.title='taken'>" in page.locator("#workers").inner_text()
        assert "\u202e" not in page.locator("body").inner_text()
        place = page.locator("#workers tbody td.words").first.bounding_box()
        assert place["x"] + place["width"] < WIDE[0]  # a long name pushes nothing away
        page.locator("summary").first.click()
        assert "onerror" in page.locator("pre").first.inner_text()
        page.context.close()


def test_a_server_that_goes_away_is_told(browser: Any, tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 1, 20)
    with served(tmp_path, now) as address:
        page, _ = opened(browser, address)
        assert page.locator("#stale").is_hidden()
        assert page.locator("#servers").is_hidden()
    page.wait_for_selector("#stale:not([hidden])", timeout=30_000)
    assert "not up to date" in page.locator("#stale").inner_text()
    page.context.close()
