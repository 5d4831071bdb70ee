"""Processes that measure: each in a session of its own, so that it ends with all that it has started."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process, which does not hear the terminal's Ctrl-C; `options` are those of `subprocess.Popen`."""
    return subprocess.Popen(command, start_new_session=True, **options)


def stop(process: subprocess.Popen[Any]) -> None:
    """End a process and whatever it has started at once; what has ended is left alone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ended(status: int) -> str:
    """Tell how a process ended."""
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
