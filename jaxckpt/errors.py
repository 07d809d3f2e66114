"""The error tree: every failure that a caller can act on has a class here.

Owns the wording rule: a message names the thing, what was expected, what was found and the next
step; the same facts are attributes, so that a program need not parse text. Knows nothing of how
the failure came about.
"""

from __future__ import annotations

import errno as _errno
import os
from collections.abc import Mapping, Sequence
from typing import Any


class JaxckptError(Exception):
    """Root of all errors that jaxckpt raises on purpose."""


class InvalidOptionsError(JaxckptError, ValueError):
    """An option or argument has a value that can not be used.

    Attributes:
        name: the option's name.
        value: what was given.
    """

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name, self.value = name, value
        super().__init__(f"{name}={value!r} can not be used: expected {expected}.")


class UnsupportedLeafError(JaxckptError, TypeError):
    """A leaf of the tree can not be saved; nothing was written.

    Attributes:
        leaf: the leaf's path as text, for instance ``params.dense.kernel``.
    """

    def __init__(self, leaf: str, reason: str, next_step: str) -> None:
        self.leaf, self.reason = leaf, reason
        super().__init__(f"leaf '{leaf}' can not be saved: {reason}. {next_step}")


class DonatedTooEarlyError(JaxckptError, RuntimeError):
    """An array was donated or deleted before it was copied; the save was given up.

    Attributes:
        leaf: the leaf's path as text.
    """

    def __init__(self, leaf: str) -> None:
        self.leaf = leaf
        super().__init__(
            f"leaf '{leaf}' was donated or deleted before the save had copied it; the save was "
            "given up, older steps are untouched. After save(..., lazy=True) call wait_staged() "
            "before a step that donates the state."
        )


class UnsupportedTopologyError(JaxckptError, RuntimeError):
    """The job has a shape (processes, devices) that this version does not handle."""


class CheckpointNotFoundError(JaxckptError, FileNotFoundError):
    """There is nothing at the path.

    Attributes:
        path: the path that was looked at.
    """

    def __init__(self, path: str, message: str | None = None) -> None:
        self.path = path
        super().__init__(message or f"there is no checkpoint at {path}: no such file or directory.")

    def __str__(self) -> str:
        return str(self.args[0])


class StepNotFoundError(CheckpointNotFoundError):
    """The run has no such step.

    Attributes:
        step: the step asked for; None when the newest was asked for.
        available: the steps that are there, ascending.
    """

    def __init__(self, path: str, step: int | None, available: Sequence[int]) -> None:
        self.step, self.available = step, tuple(available)
        have = ", ".join(map(str, self.available[-20:])) if self.available else "none"
        what = "no step at all" if step is None else f"no step {step}"
        super().__init__(path, f"{path} has {what}; the steps there are: {have}.")


class NotACheckpointError(JaxckptError, ValueError):
    """The path is there, but it is not what was asked for.

    Attributes:
        path: the path that was looked at.
    """

    def __init__(self, path: str, found: str, next_step: str) -> None:
        self.path, self.found, self.next_step = path, found, next_step
        super().__init__(f"{path} is not a checkpoint: {found}. {next_step}")


class DamagedCheckpointError(JaxckptError, ValueError):
    """Bytes of the checkpoint are not those that were written, or break the format's rules.

    Attributes:
        path: the file, or the directory when no file can be named.
        leaf: the leaf whose bytes they are, where that is known.
        offset: the byte offset in the file, where that is known.
    """

    def __init__(
        self, path: str, problem: str, *, leaf: str | None = None, offset: int | None = None
    ) -> None:
        self.path, self.problem, self.leaf, self.offset = path, problem, leaf, offset
        where = path if offset is None else f"{path} at offset {offset}"
        whose = "" if leaf is None else f" (leaf '{leaf}')"
        super().__init__(
            f"damaged checkpoint: {where}{whose}: {problem}. "
            "Restore another step or a copy; these bytes were not returned."
        )


class FormatVersionError(JaxckptError, ValueError):
    """The checkpoint was written by a version with a format that this one does not know.

    Attributes:
        path: the sidecar file.
        found: the version in the file.
        known: the newest version that this library reads.
    """

    def __init__(self, path: str, found: object, known: int) -> None:
        self.path, self.found, self.known = path, found, known
        super().__init__(
            f"{path} has format version {found}; this jaxckpt reads up to {known}. "
            "Install a newer jaxckpt (pip install -U jaxckpt) to open it."
        )


class TreeMismatchError(JaxckptError, ValueError):
    """The target tree and the checkpoint do not fit together; nothing was read.

    Attributes:
        mismatches: one line for each leaf that does not fit, all of them.
    """

    def __init__(self, path: str, mismatches: Sequence[str]) -> None:
        self.path, self.mismatches = path, tuple(mismatches)
        shown = "".join(f"\n  - {line}" for line in self.mismatches[:50])
        more = len(self.mismatches) - 50
        rest = f"\n  ... and {more} more (see .mismatches)" if more > 0 else ""
        super().__init__(
            f"the target does not match the checkpoint {path} in {len(self.mismatches)} place(s):"
            f"{shown}{rest}\nChange the target, or ask for it: cast=True converts dtypes, "
            "allow_missing=True keeps the target's own leaves where the checkpoint has none, "
            "allow_extra=True leaves stored leaves out."
        )


class StepExistsError(JaxckptError, FileExistsError):
    """A save would replace a checkpoint that is there; it was left as it is.

    Attributes:
        path: the directory that exists.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(
            f"{path} exists and was left as it is. Pass force=True to replace it, or choose "
            "another step or directory."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class StorageError(JaxckptError, OSError):
    """The file system refused an operation.

    Attributes:
        operation: what was tried (``write``, ``sync``, ...).
        path: the file or directory.
        errno: the system's error number.
    """

    def __init__(self, operation: str, path: str, cause: OSError, next_step: str = "") -> None:
        self.operation, self.path = operation, path
        number = cause.errno or 0
        text = os.strerror(number) if number else str(cause)
        code = _errno.errorcode.get(number, "?")
        advice = next_step or _ADVICE.get(number, "")
        self._text = f"{operation} failed on {path}: {text} ({code})." + (
            f" {advice}" if advice else ""
        )
        super().__init__(number, text)
        self.filename = path

    def __str__(self) -> str:
        return self._text


class PeerFailedError(JaxckptError, RuntimeError):
    """Another process of the job failed, so this one gave up too.

    A save that fails leaves no step behind, unless its name was given already and only then an
    error came; what is listed is whole.

    Attributes:
        process: the index of the process that failed.
        error_type: the name of its error's class.
        text: its error's message.
    """

    def __init__(self, what: str, process: int, error_type: str, text: str) -> None:
        self.what, self.process, self.error_type, self.text = what, process, error_type, text
        super().__init__(f"{what}: process {process} failed with {error_type}: {text}")


class PeerMissingError(JaxckptError, TimeoutError):
    """Processes of the job did not come to a point where all must meet.

    Attributes:
        doing: for each process that is missing, what it said last.
    """

    def __init__(
        self, what: str, point: str, timeout_secs: float, doing: Mapping[int, str]
    ) -> None:
        self.what, self.point, self.doing = what, point, dict(doing)
        self.timeout_secs = timeout_secs
        who = "; ".join(f"process {p} {text}" for p, text in sorted(doing.items())[:20])
        more = f"; and {len(doing) - 20} more" if len(doing) > 20 else ""
        super().__init__(
            f"{what}: waited {timeout_secs:g} s for all processes at '{point}': {who}{more}. "
            "Look at the logs of those processes; every process must make this call."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class CollectiveFailedError(JaxckptError, RuntimeError):
    """Handing bytes from device to device failed; most often since a process has died."""

    def __init__(self, what: str, cause: Exception) -> None:
        self.what = what
        super().__init__(
            f"{what}: a collective failed: {cause}. A process of the job has most likely died: "
            "look at the logs of the others and start the job again."
        )


class ProcessesDisagreeError(JaxckptError, ValueError):
    """The processes of the job do not ask for the same thing; nothing was written or read.

    Attributes:
        problem: what differs, and between which processes.
    """

    def __init__(self, what: str, problem: str) -> None:
        self.what, self.problem = what, problem
        super().__init__(f"{what}: the processes of the job disagree: {problem}.")


class NotSharedError(JaxckptError, OSError):
    """A process does not see the directory that the others use.

    Attributes:
        path: the directory.
        process: the process that does not see it.
    """

    def __init__(self, path: str, process: int, detail: str) -> None:
        self.path, self.process, self.detail = path, process, detail
        super().__init__(
            f"process {process} does not see {detail} in {path}: every process must use the same "
            "directory of a shared file system. Check the path and the mount on its host."
        )

    def __str__(self) -> str:
        return str(self.args[0])


class ClosedError(JaxckptError, RuntimeError):
    """The object was closed; make a new one."""


class PreemptedError(JaxckptError, RuntimeError):
    """The process had to end before a step was durable; the step was given up.

    Attributes:
        step: the step.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(
            f"step {step} could not be made durable before the end of the grace period; it was "
            "given up, older steps are untouched."
        )


class PreemptedWarning(UserWarning):
    """The last state could not be saved before the process had to end."""


class DamagedStepWarning(UserWarning):
    """A newer step is damaged and an older one was restored in its place."""


class JournalWarning(UserWarning):
    """The run's journal can not be written; training and saves go on without it."""


_ADVICE: dict[int, str] = {
    _errno.ENOSPC: "Free space on that file system or keep fewer steps, then save again; "
    "older steps are untouched.",
    _errno.EDQUOT: "The quota is used up: free space or keep fewer steps, then save again; "
    "older steps are untouched.",
    _errno.EACCES: "Check the permissions of the directory.",
    _errno.EPERM: "Check the permissions of the directory.",
    _errno.EROFS: "The file system is mounted read-only: choose another directory.",
    _errno.ENOTDIR: "A part of the path is a file: choose another directory.",
    _errno.EIO: "The device reported an error: the step was given up, older steps are untouched.",
}

# Errors that mean the same on every process, with their constructor's arguments.
_SHARED: dict[type[JaxckptError], tuple[str, ...]] = {
    PeerFailedError: ("what", "process", "error_type", "text"),
    PeerMissingError: ("what", "point", "timeout_secs", "doing"),
    ProcessesDisagreeError: ("what", "problem"),
    NotSharedError: ("path", "process", "detail"),
    PreemptedError: ("step",),
    StepExistsError: ("path",),
    StepNotFoundError: ("path", "step", "available"),
    DamagedCheckpointError: ("path", "problem", "leaf", "offset"),
    NotACheckpointError: ("path", "found", "next_step"),
    FormatVersionError: ("path", "found", "known"),
}


def error_to_word(error: BaseException) -> dict[str, Any]:
    """An error as JSON, to be told to the other processes of the job."""
    word: dict[str, Any] = {"type": type(error).__name__, "text": str(error) or repr(error)}
    fields = _SHARED.get(type(error))  # pyright: ignore[reportArgumentType]
    if fields is not None:
        word["fields"] = {name: getattr(error, name) for name in fields}
    return word


def error_from_word(what: str, process: int, word: dict[str, Any]) -> JaxckptError:
    """What a process raises because another one failed.

    The same error where it is about what all share, a `PeerFailedError` where it is about the
    process.

    Args:
        what: the operation.
        process: the one that failed.
        word: from `error_to_word`.
    """
    for kind, names in _SHARED.items():
        if kind.__name__ == word["type"] and set(word.get("fields", ())) == set(names):
            fields = dict(word["fields"])
            if "doing" in fields:
                fields["doing"] = {int(p): text for p, text in fields["doing"].items()}
            error = kind(**fields)
            error.add_note(f"found by process {process} in {what}")
            return error
    return PeerFailedError(what, process, word["type"], word["text"])
