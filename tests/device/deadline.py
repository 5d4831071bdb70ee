"""The deadline of tests on a device, also for child processes."""

import os
import subprocess
import sys
import time

END_VARIABLE = "TRIGRAPH_DEVICE_END"  # environment variable with the time at which all processes must end
DEADLINE_MARGIN = 2.0  # seconds; a process that ends with less time left was ended by the deadline


def seconds_left():
    return float(os.environ[END_VARIABLE]) - time.time()


def run_python(*arguments, prefix=()):
    """Run Python in a child process; return its status and output."""
    command, end = [*prefix, sys.executable, *arguments], max(seconds_left() - 1, 0)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=end, check=False)
    except subprocess.TimeoutExpired:
        time.sleep(60)  # the deadline ends this process, too
        raise
    return done.returncode, done.stdout.decode(errors="replace")
