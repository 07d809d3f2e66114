"""Where a run happened, without the names of paths and hosts."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from dataclasses import dataclass

import jax

_PACKAGES = (
    "jaxckpt",
    "jax",
    "jaxlib",
    "orbax-checkpoint",
    "tensorstore",
    "numpy",
    "torch",
    "safetensors",
)


@dataclass(frozen=True)
class Machine:
    """What a reader needs to judge the figures."""

    day: str
    device: str
    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    disk: str
    load: list[float]
    python: str
    versions: dict[str, str]
    commit: str


def describe(folder: str) -> Machine:
    """This machine, and the disk that a directory is on."""
    return Machine(
        day=time.strftime("%Y-%m-%d", time.gmtime()),
        device=f"{jax.device_count()} virtual {jax.default_backend().upper()} devices",
        cpu=_field("/proc/cpuinfo", "model name"),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9,
        kernel=f"{platform.system()} {platform.release()}",
        disk=_disk(folder),
        load=list(os.getloadavg()),
        python=platform.python_version(),
        versions={name: version for name in _PACKAGES if (version := _version(name))},
        commit=_commit(),
    )


def _field(path: str, name: str) -> str:
    with open(path) as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return "unknown"


def _disk(folder: str) -> str:
    """File system and block device under a directory."""
    number = os.stat(folder).st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    total = os.statvfs(folder)
    size = f"{total.f_blocks * total.f_frsize / 1e9:.0f} GB"
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            left, _, right = line.partition(" - ")
            if left.split()[2] == wanted:
                kind, source = right.split()[:2]
                return f"{kind}, {size}, block device {os.path.basename(source)}"
    return f"unknown file system, {size}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """The commit of this checkout, and whether the library differs from it."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        commit = _git(home, "rev-parse", "HEAD").strip()
        changed = _git(home, "status", "--porcelain", "--", "jaxckpt", "benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with changes" if changed.strip() else commit


def _git(home: str, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=home, check=True, capture_output=True, text=True)
    return done.stdout
