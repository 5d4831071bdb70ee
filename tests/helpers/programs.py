"""Helpers that run programs in new processes."""

import subprocess
import time
from pathlib import Path


def run_command(*command, status=0, timeout=600, **keywords):
    """Run a command, and assert that it exits with the expected status (None: with any status)."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **keywords)
    assert status in (done.returncode, None), f"{words} has status {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def is_running(pid):
    """Return whether a process exists and is not a zombie, which has ended but has not been waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, seconds=60):
    """Wait for a condition, and fail if it does not become true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
