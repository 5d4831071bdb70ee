"""Ends after it has found something, in three ways."""

import os
import signal

AT_ONCE = True


def parts(place):
    return ["raises", "killed", "exits"]


def run(part, place, notes):
    notes.add("before", True)
    if part == "raises":
        raise RuntimeError("an illegal memory access was encountered")
    if part == "killed":
        os.kill(os.getpid(), signal.SIGSEGV)
    os._exit(3)
