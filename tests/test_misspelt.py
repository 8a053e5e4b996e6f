"""Names of environment variables that are nearly right are told, and all settings are known."""

import re
from pathlib import Path

import pytest

from jaxtribute._src import misspelt

SOURCE = Path(misspelt.__file__).parents[1]


def test_names_that_are_nearly_right_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAXTRIBUTE_BENCH", "JAXTRIBUTE_ALL_CASES", "JAXTRIBUTE_", "PATHS"):
        monkeypatch.setenv(name, "1")
        misspelt.check_names()
    monkeypatch.setenv("JAXTRIBUTE_TIMEOUTS_S", "5")
    with pytest.warns(UserWarning, match=r"JAXTRIBUTE_TIMEOUTS_S is not read\. HINT: set JAXTRIBUTE_TIMEOUT_S"):
        misspelt.check_names()


def test_all_settings_are_known() -> None:
    read = {name for file in SOURCE.rglob("*.py") for name in re.findall(r"JAXTRIBUTE_[A-Z_]*[A-Z]", file.read_text())}
    assert read == misspelt.SETTINGS
