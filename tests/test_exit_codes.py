"""The codes are those of sysexits.h, as schedulers know them."""

import os

from jaxtribute._src import exit_codes


def test_the_codes() -> None:
    assert (exit_codes.RESUME, exit_codes.ELSEWHERE) == (os.EX_TEMPFAIL, os.EX_SOFTWARE)
