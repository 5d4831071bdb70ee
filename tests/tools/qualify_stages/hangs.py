"""Never ends, and has started a process that does not end either; a second part has no time left."""

import signal
import subprocess
import sys
import time
from pathlib import Path


def parts(place):
    return ["hangs", "waits"]


def run(part, place, notes):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    notes.add("before", True, child=child.pid)
    Path(notes.folder.with_suffix(".child")).write_text(str(child.pid))
    time.sleep(600)
