"""Runs the code of a Markdown page as its reader would: from top to bottom, in one namespace.

A block marked `python` is executed. A block marked `pycon` is a session whose every output must come out as it is
printed; of a traceback the last line counts. `...` stands for anything.
"""

import contextlib
import doctest
import importlib
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^```(?P<kind>python|pycon)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(text: str) -> list[tuple[int, str, str]]:
    """The line, kind and code of every block of Python in a page."""
    found = _BLOCK.finditer(text)
    return [(text.count("\n", 0, match.start("code")), match["kind"], match["code"]) for match in found]


def run_page(page: Path) -> None:
    """Runs all blocks of a page.

    Raises:
        AssertionError: An output is not what the page prints.
        Exception: Whatever a `python` block raises, or a session without showing it.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, kind, code in blocks(page.read_text(encoding="utf-8")):
        if kind == "python":
            _execute(code, page, line, "exec", names)
            continue
        examples = doctest.DocTestParser().get_examples(code)
        assert examples, f"{page}:{line}: a session without >>>"
        for example in examples:
            _check(example, page, line + example.lineno, names)


def _execute(code: str, page: Path, line: int, mode: str, names: dict[str, Any]) -> None:
    # Blank lines in front, so that a traceback names the line of the page.
    exec(compile("\n" * line + code, str(page), mode), names)


def _check(example: doctest.Example, page: Path, line: int, names: dict[str, Any]) -> None:
    printed = io.StringIO()
    wanted = example.want
    try:
        with contextlib.redirect_stdout(printed):
            _execute(example.source, page, line, "single", names)
        got = printed.getvalue()
    except Exception as error:
        if example.exc_msg is None:
            raise
        wanted, got = example.exc_msg, f"{_name(type(error))}: {error}\n"
    same = doctest.OutputChecker().check_output(wanted, got, _FLAGS)
    assert same, f"{page}:{line + 1}: {example.source}printed\n{got}instead of\n{wanted}"


def _name(error: type[Exception]) -> str:
    builtin = error.__module__ == "builtins"
    return error.__qualname__ if builtin else f"{error.__module__}.{error.__qualname__}"


def run_pages(pages: Sequence[Path]) -> list[Path]:
    """Runs each page in a process of its own, forked from one that has imported what the pages use, and no more.

    Returns:
        The pages that failed; what they raised has been printed.
    """
    for name in ("jaxtribute.compat.tf", "jaxtribute.testing"):
        importlib.import_module(name)
    failed: list[Path] = []
    for page in pages:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run_page(page)
                status = 0
            except BaseException:  # noqa: BLE001 - told by the status
                print(f"{page} failed:")
                traceback.print_exc(file=sys.stdout)
            finally:
                sys.stdout.flush()
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            failed.append(page)
    return failed


if __name__ == "__main__":
    # Keras's own variables, whenever NumPy reads them.
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy", DeprecationWarning)
    # The threads of OpenBLAS, which it stops before a fork.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    failures = run_pages([Path(name) for name in sys.argv[1:]])
    sys.exit(f"failed: {', '.join(map(str, failures))}" if failures else 0)
