"""Tests that compute-sanitizer reports no errors; run as a script, this file runs the cases of one family."""

import re
import shutil
import sys
from unittest import mock

import pytest
from device_calls import run_python

from trigraph.benchmarks.qualify import cases
from trigraph.benchmarks.qualify.place import make_device as place_of
from trigraph.gpu import cache
from trigraph.gpu.instances import INSTANCES

NAME = "compute-sanitizer"
TOOLS = ("racecheck", "memcheck", "synccheck")  # slowest first
LINE_NUMBERS = "-lineinfo"  # lets compute-sanitizer name the source line


def list_tool_errors(printed):
    """Return the first lines of a tool's report, [] if it reports no errors, or None if there is no summary."""
    count = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", printed)
    lines = [line.strip("= ") for line in printed.splitlines() if line.startswith("=========")]
    return None if count is None else lines[: 20 * bool(int(count[1]))]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("family", INSTANCES)
def test_compute_sanitizer_reports_no_errors(target, tool, family):
    program = shutil.which(NAME) or shutil.which(f"/usr/local/cuda/bin/{NAME}")
    if program is None:
        pytest.skip(f"{NAME} is not there (PATH, /usr/local/cuda/bin)")
    # CuPy looks up functions that the driver may lack; these lookups would be reported as API errors.
    options = ("--tool", tool, "--error-exitcode", "9", "--launch-timeout", "60", "--report-api-errors", "no")
    status, printed = run_python(__file__, target.backend, family, prefix=(program, *options))
    if "Device not supported" in printed:  # this happens under gVisor
        pytest.skip(f"{NAME}: Device not supported")
    assert (list_tool_errors(printed), status) == ([], 0), printed[-3000:]
    assert re.search(r"^[1-9]\d* arrays are correct$", printed, re.MULTILINE)


def main(backend, family):
    """Check the results of all cases, with separately allocated arrays, because a memory pool would hide overruns."""
    where = place_of(backend)
    if not where.rehearsal:
        where.xp.cuda.set_allocator(None)
    with mock.patch.object(cache, "OPTIONS", (*cache.OPTIONS, LINE_NUMBERS)):
        print(f"{len(cases.compare_kernels_with_judge(family, where))} arrays are correct")


if __name__ == "__main__":
    main(*sys.argv[1:])
