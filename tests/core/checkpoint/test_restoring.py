"""The memory that a restore may take on the host."""

from __future__ import annotations

import pytest

from jaxtribute._src.core.checkpoint import restoring

MIB = 1 << 20
MEMORY = {
    "/proc/meminfo": ["MemTotal: 4096 kB", "MemAvailable: 3072 kB"],
    "/sys/fs/cgroup/memory.max": [str(2 * MIB)],
    "/sys/fs/cgroup/memory.current": [str(MIB)],
    "/sys/fs/cgroup/memory.stat": ["anon 7", f"inactive_file {MIB // 4}"],
}


@pytest.mark.parametrize(
    ("changed", "free"),
    [
        ({}, MIB + MIB // 4),
        ({"/proc/meminfo": ["MemAvailable: 1024 kB"]}, MIB),
        ({"/sys/fs/cgroup/memory.max": ["max"]}, 3 * MIB),
        ({"/sys/fs/cgroup/memory.stat": []}, MIB),
    ],
    ids=["container", "machine", "no limit", "no count of files"],
)
def test_what_is_free_is_what_machine_and_container_leave(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, list[str]], free: int
) -> None:
    found = MEMORY | changed
    monkeypatch.setattr(restoring, "text_of", lambda path: "".join(f"{line}\n" for line in found[path]))
    assert restoring._free_on_host() == free  # pyright: ignore[reportPrivateUsage]
