"""A file system whose device writes at a set rate, the same for everyone who writes to it.

A loop device with ext4, its writes limited by the kernel's block controller (cgroup v1), and with
little room for dirty pages: otherwise whoever writes through the page cache would be done long
before a byte is stored. All of this needs root.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

CONTROL = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
"""Limits of writing, one line for each device: its number and bytes a second."""
_NEEDED = ("losetup", "mkfs.ext4", "mount", "umount")
_DIRTY = (("strict_limit", "1", "0"), ("max_ratio", "1", "100"))
"""Of the device's dirty pages: what is set, and what was there before."""


@dataclass(frozen=True)
class Throttled:
    """The file system.

    Attributes:
        folder: where it is mounted.
    """

    folder: str
    _number: str

    def set_rate(self, bytes_per_second: float) -> None:
        """From now on; 0 is no limit."""
        CONTROL.write_text(f"{self._number} {int(bytes_per_second)}\n")


def why_not() -> str:
    """Why no such file system can be had here; "" if it can."""
    if os.geteuid() != 0:
        return "it needs root"
    if not os.access(CONTROL, os.W_OK):
        return "there is no block controller of cgroup v1"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices"
    missing = [name for name in _NEEDED if not _found(name)]
    return f"{', '.join(missing)} is not there" if missing else ""


@contextlib.contextmanager
def throttled(folder: str, nbytes: int) -> Generator[Throttled]:
    """Makes one of so many bytes, whose file lies in a directory; no limit is set yet.

    Raises:
        subprocess.CalledProcessError, OSError: it can not be made after all.
    """
    image, mounted = os.path.join(folder, "image"), os.path.join(folder, "mounted")
    os.mkdir(mounted)
    with open(image, "wb") as file:
        file.truncate(nbytes)
    with contextlib.ExitStack() as undo:
        undo.callback(os.unlink, image)
        _run("mkfs.ext4", "-q", "-F", image)
        device = _run("losetup", "--find", "--show", image).strip()
        undo.callback(_run, "losetup", "--detach", device)
        number = Path(f"/sys/block/{os.path.basename(device)}/dev").read_text().strip()
        _run("mount", device, mounted)
        undo.callback(_run, "umount", mounted)
        for name, limit, usual in _DIRTY:
            control = Path(f"/sys/class/bdi/{number}/{name}")
            if control.exists():
                control.write_text(limit)
                undo.callback(control.write_text, usual)
        found = Throttled(mounted, number)
        undo.callback(found.set_rate, 0)
        yield found


def _found(name: str) -> bool:
    places = (*os.environ.get("PATH", "").split(":"), "/sbin", "/usr/sbin")
    return any(os.access(os.path.join(place, name), os.X_OK) for place in places)


def _run(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout
