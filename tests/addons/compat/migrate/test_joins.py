"""What follows `server.join()` must not run: TensorFlow's never returns."""

import textwrap

import pytest

from jaxtribute._src.addons.compat.migrate.scan import scan

HEAD = """
import sys, tensorflow as tf
server = tf.distribute.Server(spec, job_name="ps", task_index=0)
"""
FOLLOWED = {
    "by a strategy": ("if ps:\n    server.join()\nstrategy = f()", "    server.join()\n    raise SystemExit\nstrategy"),
    "in the same block": (
        "if ps:\n    server.join()\n    print()",
        "    server.join()\n    raise SystemExit\n    print",
    ),
    "on a line": ("if ps: server.join()\nf()", "if ps: server.join(); raise SystemExit\nf()"),
    "with a comment": ("if ps:\n    server.join()  # waits\nf()", "    server.join(); raise SystemExit  # waits\nf()"),
    "in a function": (
        "def main():\n    if ps:\n        server.join()\n    train()",
        "        server.join()\n        raise SystemExit\n    train()",
    ),
    "behind what tries": (
        "try:\n    server.join()\nexcept E: pass\nf()",
        "    server.join()\n    raise SystemExit\nexc",
    ),
    "made there": ("tf.distribute.Server(s).join()\nf()", "tf.distribute.Server(s).join()\nraise SystemExit\nf()"),
    "in a case": (
        "match kind:\n    case 'ps':\n        server.join()\nf()",
        "server.join()\n        raise SystemExit\n",
    ),
}
ENDS = {
    "the last line": "server.join()",
    "an exit": "if ps:\n    server.join()\n    sys.exit(0)\nstrategy = f()",
    "an error": "if ps:\n    server.join()\n    raise SystemExit\nstrategy = f()",
    "a return": "def main():\n    if ps:\n        server.join()\n        return\n    train()\nmain()",
    "an else": "if ps:\n    server.join()\nelse:\n    train()",
    "a function's end": "def wait():\n    server.join()\ntrain()",
    "of something else": "thread.join()\nf()",
}


@pytest.mark.parametrize(("code", "expected"), FOLLOWED.values(), ids=FOLLOWED)
def test_a_join_that_other_lines_follow_ends_the_process(code: str, expected: str) -> None:
    after = scan(HEAD + code + "\n").rewritten()
    assert expected in after
    assert after.count("SystemExit") == 1
    compile(after, "<rewritten>", "exec")
    assert not scan(after).left()


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_other_joins_stay(code: str) -> None:
    assert textwrap.dedent(code) in scan(HEAD + code + "\n").rewritten()
