"""The last traceback in what a process prints: that of Python itself, for errors of every shape."""

import textwrap
import traceback

import jax
import pytest

from jaxtribute._src.addons.launcher.tracebacks import heading, last_traceback, last_word, message

SHAPES = {
    "one line": ("raise ValueError('boom')", "ValueError: boom"),
    "no message": ("raise KeyError", "KeyError"),
    "several lines": ("raise ValueError('boom:\\n  a = 1\\nHINT: b')", "ValueError: boom:\n  a = 1\nHINT: b"),
    "blank lines": ("raise ValueError('boom\\n\\n\\nHINT: b')", "ValueError: boom\n\n\nHINT: b"),
    "blank beginning": ("raise ValueError('\\n    a\\nb')", "ValueError: \n    a\nb"),
    "notes": ("e = ValueError('boom'); e.add_note('one\\ntwo'); raise e", "ValueError: boom\none\ntwo"),
    "chained": (
        "try: raise KeyError('a\\nb')\nexcept KeyError as e: raise ValueError('c\\n\\n  d') from e",
        "ValueError: c\n\n  d",
    ),
    "while another was handled": (
        "try: raise ExceptionGroup('many', [KeyError(1)])\nexcept* KeyError: raise ValueError('c\\nd')",
        "ValueError: c\nd",
    ),
    "group": (
        "raise ExceptionGroup('many', [ValueError('a\\nb'), ExceptionGroup('c', [KeyError(1)])])",
        "ExceptionGroup: many (2 sub-exceptions); ValueError: a; b; ExceptionGroup: c (1 sub-exception); KeyError: 1",
    ),
    "no code": ("compile('x = = 1', 'a.py', 'exec')", "SyntaxError: invalid syntax"),
}


def printed(code: str) -> str:
    """What Python prints of a program that ends by an error."""
    try:
        exec(code, {})
    except Exception as error:  # noqa: BLE001
        return "".join(traceback.format_exception(error))
    raise AssertionError(code)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_whole_message_is_found(shape: str) -> None:
    code, expected = SHAPES[shape]
    text = printed(code)
    for before in ("", "before\n", "step 3 of 10"):
        for after in ("", "\n\n", "E1127 14:3 1 client.cc:86] gone\nmore\n", "jaxtribute: told the others\n"):
            found = last_traceback(f"{before}{text}{after}".encode().split(b"\n"))
            assert found == text.rstrip("\n")
            assert message(found) == expected
            assert heading(found) == expected.partition("\n")[0]


def test_a_chain_begins_with_its_first_error() -> None:
    earlier = printed("raise OSError('long ago')")
    text = printed(
        textwrap.dedent("""
        try:
            try: raise ExceptionGroup('many', [KeyError(1)])
            except ExceptionGroup: raise OSError('a\\n\\nb')
        except OSError: raise ValueError('c\\nd')
    """)
    )
    found = last_traceback((earlier + text).encode().split(b"\n"))
    assert (found, message(found)) == (text.rstrip("\n"), "ValueError: c\nd")


@pytest.mark.parametrize("line", ["training goes on", "x" * 4000])
def test_what_follows_without_end_is_cut(line: str) -> None:
    found = last_traceback((printed("raise ValueError('boom')") + f"{line}\n" * 1000).encode().split(b"\n"))
    assert 1 < found.count("\n") < 70
    assert len(found) < 10_000
    assert heading(found) == "ValueError: boom"


@pytest.mark.parametrize("mode", ["quiet_remove_frames", "remove_frames", "tracebackhide", "off"])
@pytest.mark.parametrize("shape", ["one line", "several lines", "notes", "group"])
def test_jax_own_note_is_no_part_of_the_message(shape: str, mode: str) -> None:
    """The note that JAX adds where it has taken frames of its own out of a traceback."""
    code, expected = SHAPES[shape]
    traced = f"""
import jax
def program(x):
    {code}
jax.config.update("jax_traceback_filtering", {mode!r})
try:
    jax.jit(program)(1.0)
except Exception as error:
    error.add_note("one more")
    raise
"""
    before = jax.config.jax_traceback_filtering  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    try:
        found = last_traceback(printed(traced).encode().split(b"\n"))
    finally:
        jax.config.update("jax_traceback_filtering", before)
    separator = "; " if shape == "group" else "\n"
    assert message(found).replace("; one more", "").replace("\none more", "") == expected, found
    assert f"{separator}one more" in message(found)


WARNED = "/home/me/train.py:7: UserWarning: one\nHINT: two\n  loss = step(batch)"
"""A warning as Python prints it, with the line of source."""


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("step 3\n", "step 3"),
        (f"step 3\n{WARNED}\n\n", "step 3"),
        (f"step 3\n{WARNED}\n{WARNED}\n", "step 3"),
        ("step 3\n<string>:7: DeprecationWarning: one\n", "step 3"),
        ("step 3\n/a b/c.py:7: DeprecationWarning: one\n  x = 1\n", "step 3"),
        (f"{WARNED}\nstep 3", "step 3"),
        (f"{WARNED}\nstep 3\n  of 10", "  of 10"),
        (WARNED, ""),
        ("  what():  boom\n", "  what():  boom"),
        ("", ""),
    ],
)
def test_a_warning_is_not_the_last_word(text: str, word: str) -> None:
    assert last_word(text.encode().split(b"\n")).decode() == word


def test_there_is_none() -> None:
    assert (last_traceback([]), last_traceback([b"word", b""]), message(""), heading("")) == ("", "", "", "")
