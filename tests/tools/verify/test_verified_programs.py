"""Planted mistakes are found, with the line and what to write instead; right programs raise no alarm."""

import pytest
import verified_programs
from verified_programs import RIGHT, WRONG, Case

import jaxtribute as jd
from jaxtribute import testing


def verdict(case: Case) -> testing.Verdict:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    step, batch = case.program(strategy, case.wrong)
    return testing.verify(step, *batch, strategy=strategy, raises=False)


@pytest.mark.parametrize("case", RIGHT, ids=str)
def test_a_right_program_raises_no_alarm(case: Case) -> None:
    found = verdict(case)
    assert found.right and len(found.tried) >= 5, str(found)


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_mistake_is_found_with_its_line_and_what_to_write(case: Case) -> None:
    found = verdict(case)
    assert found.findings, str(found)
    culprits = [finding.culprit for finding in found.findings]
    lines = [place.line for one in culprits for place in (one.place, one.elsewhere) if place is not None]
    assert culprits[0].place is not None and culprits[0].place.file == verified_programs.__file__, str(found)
    assert verified_programs.line_of(case) in lines, str(found)
    assert culprits[0].pattern.name in case.patterns, str(found)
