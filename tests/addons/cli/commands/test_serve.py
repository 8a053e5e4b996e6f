"""The page's server says what is wrong with its visitors, and not at each of them."""

import logging

import pytest

from jaxtribute._src.addons.cli.commands.serve import Seldom


def test_a_warning_comes_seldom(caplog: pytest.LogCaptureFixture) -> None:
    logger, seldom = logging.getLogger("test_serve"), Seldom()
    logger.addFilter(seldom)
    for number in range(341):
        logger.warning("Invalid HTTP request received.")
        if number == 50:
            logger.warning("another, of %s", "somebody")
    logger.removeFilter(seldom)
    assert [record.getMessage() for record in caplog.records] == [
        "Invalid HTTP request received.",
        "Invalid HTTP request received. (10 times until now)",
        "another, of somebody",
        "Invalid HTTP request received. (100 times until now)",
    ]
