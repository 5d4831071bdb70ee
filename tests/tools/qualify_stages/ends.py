"""A stage whose parts end in various ways: with an error, by a signal, without their tool, or never."""

import os
import signal
import subprocess
import sys
import time

AT_ONCE = True


def list_parts(place):
    return ["hangs", "raises", "killed", "exits", "tool", "good", "bad"]


def make_command_prefix(part, place):
    if part == "tool":
        raise FileNotFoundError("the tool is not there")
    return []


def run_part(part, place, notes):
    notes.add("before", True)
    if part == "raises":
        raise RuntimeError("an illegal memory access was encountered")
    if part == "killed":
        os.kill(os.getpid(), signal.SIGSEGV)
    if part == "exits":
        os._exit(3)
    if part == "bad":
        notes.add(part, False, "two is not three", number=2)
    if part == "hangs":  # the child process hangs, too
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        notes.add("child", None, child=child.pid)
        time.sleep(600)
