"""A program that is watched is waited for while functions of its own have not run, and for nobody else's."""

from __future__ import annotations

import jaxtribute as jd
from jaxtribute._src.addons.verify.ending import Ending


def test_functions_of_before_are_not_waited_for() -> None:
    earlier = jd.function(lambda: 0)
    ending = Ending(2)
    assert ending.unseen() == []
    with ending.noting():

        @jd.function
        def late() -> int:
            return 1

        @jd.function
        def called() -> int:
            return 2

        assert called() == 2
        (told,) = ending.unseen()
        assert told.startswith("late (")
        assert late() == 1
        assert ending.unseen() == []
    assert earlier() == 0
