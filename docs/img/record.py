"""Makes two pictures of the README from the real thing: what `make demo` prints, and the page of a run.

python docs/img/record.py demo     docs/img/demo.svg, of examples/digits.py
python docs/img/record.py page     docs/img/live.png, of a run that is made up; needs Playwright and Chromium
"""

from __future__ import annotations

import io
import re
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
WIDTH = 92
EPOCHS = 5


def demo() -> None:
    """Runs the example and keeps what it prints."""
    from rich.console import Console

    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(f"$ python examples/digits.py --epochs {EPOCHS}", highlight=False)
    script = ROOT / "examples" / "digits.py"
    sys.argv = [str(script), "--epochs", str(EPOCHS)]
    sys.path.insert(0, str(script.parent))
    with mock.patch("rich.console.Console", return_value=console):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
    picture = console.export_svg(title="make demo", unique_id="demo")
    # Fonts of the reader's system: a picture asks nothing of another host.
    picture = re.sub(r"@font-face\s*{[^}]*}", "", picture)
    (ROOT / "docs" / "img" / "demo.svg").write_text(picture, encoding="utf-8")


def page() -> None:
    """Looks at the page of a run in a browser without a window."""
    sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "addons" / "live")]
    import test_page
    from playwright.sync_api import sync_playwright

    import live_runs

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        run = Path(folder) / "large"
        now = live_runs.eventful(run, workers=32)
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with test_page.served(run, now) as address:
            shown, errors = test_page.opened(browser, address, (1160, 1000))
            if errors:
                raise RuntimeError(f"the page showed errors: {errors}")
            shown.screenshot(path=str(ROOT / "docs" / "img" / "live.png"))
            shown.context.close()
        browser.close()


if __name__ == "__main__":
    {"demo": demo, "page": page}[sys.argv[1]]()
