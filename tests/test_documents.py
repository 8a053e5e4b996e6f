"""Every block of Python in the README and the documentation runs, and prints what it says it prints."""

import re
from pathlib import Path

import pytest

from documents import blocks, run_page
from processes import run_python

ROOT = Path(__file__).parents[1]
RUNNER = ROOT / "tests" / "support" / "documents.py"
IN_THREADS = RUNNER.with_name("in_threads.py")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = {page: "".join(code for _, _, code in blocks(page.read_text(encoding="utf-8"))) for page in PAGES}
ON_RAY = ROOT / "docs" / "guide" / "parameter_servers.md"
WITH_CODE = [page for page in PAGES if CODE[page] and page != ON_RAY and not page.with_suffix(".ipynb").exists()]
"""Those of notebooks are run as notebooks. Parameter servers of these pages are threads."""


@pytest.mark.slow
@pytest.mark.parametrize("third", [0, 1, 2])
def test_the_code_of_the_pages_runs(third: int, tmp_path: Path) -> None:
    """Of a page that raises, which comes last, the line is named; no other fails."""
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\nx / 0\n```\n")
    output = run_python(IN_THREADS, str(RUNNER), *map(str, WITH_CODE[third::3]), str(page), devices=4, status=1)
    assert output.rstrip().endswith(f"\nfailed: {page}"), output
    assert f'{page}", line 5' in output


@pytest.mark.ray
def test_the_code_of_the_page_of_parameter_servers_runs() -> None:
    run_python(RUNNER, str(ON_RAY), devices=4)


def test_every_block_of_code_names_a_language_and_only_python_that_is_run() -> None:
    for page in PAGES:
        fences = re.findall(r"^(?: *)```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(fences[::2]) <= {"python", "pycon", "sh", "text", "make", "yaml"}, page
        assert not any(fences[1::2]), page


def test_a_page_that_prints_something_else_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```pycon\n>>> x + 1\n3\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:6: x \+ 1\nprinted\n2\n"):
        run_page(page)


def test_sessions_share_the_names_of_the_blocks_above(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n```pycon\n>>> y = x + 1\n>>> y\n2\n```\n\n```python\nassert y == 2\n```\n"
    )
    run_page(page)


def test_the_first_program_of_the_readme_is_short() -> None:
    data, program = (block[2] for block in blocks((ROOT / "README.md").read_text(encoding="utf-8"))[:2])
    assert sum(bool(line.strip()) for line in (data + program).splitlines()) <= 20


def test_a_session_shows_errors_by_their_last_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```pycon\n>>> {}['key']\nTraceback (most recent call last):\nKeyError: ...\n```\n")
    run_page(page)
    page.write_text("```pycon\n>>> {}['key']\nTraceback (most recent call last):\nValueError: ...\n```\n")
    with pytest.raises(AssertionError, match="KeyError"):
        run_page(page)


def test_a_session_that_raises_without_showing_it_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```pycon\n>>> {}['key']\n1\n```\n")
    with pytest.raises(KeyError):
        run_page(page)
