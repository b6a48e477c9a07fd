"""How much memory there is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def free_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process can still get: what the system has free, or its cgroups allow. None: not known.

    Files in memory count as free, since they make room. `root` is where proc and sys are.
    """
    limits = []
    if (available := _numbers(root / "proc/meminfo").get("MemAvailable")) is not None:
        limits.append(available * 1024)
    for folder in _cgroups(root):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
            except (OSError, ValueError):  # the other version of cgroups, or "max"
                continue
            stat = _numbers(folder / "memory.stat")
            files = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            limits.append(max(most - used + files, 0))
    return min(limits, default=None)


def _cgroups(root: Path) -> Iterator[Path]:
    """Folders of the process's memory cgroup, version 2 or 1, and of those that it is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        base = root / "sys/fs/cgroup" / controllers
        if number == "0" or "memory" in controllers.split(","):
            inner = Path(path.removeprefix("/"))
            yield from (base / part for part in (inner, *inner.parents))


def _numbers(file: Path) -> dict[str, int]:
    """Of lines like `MemAvailable:  123 kB`."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    words = [line.replace(":", " ").split() for line in lines]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}
