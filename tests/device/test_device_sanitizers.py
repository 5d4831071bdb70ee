"""Tests that compute-sanitizer reports no errors."""

import pytest
from deadline import run_python

from trigraph.benchmarks.qualify.part import read_notes
from trigraph.benchmarks.qualify.stages import sanitizer
from trigraph.gpu.instances import INSTANCES


@pytest.mark.parametrize("tool", sanitizer.TOOLS)
@pytest.mark.parametrize("family", INSTANCES)
def test_compute_sanitizer_reports_no_errors(target, tmp_path, tool, family):
    name, notes = f"{tool} {family}", tmp_path / "notes.jsonl"
    try:
        prefix = sanitizer.make_command_prefix(name, target)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    arguments = "trigraph.benchmarks.qualify.part", target.backend, sanitizer.__name__, name, notes
    status, printed = run_python("-m", *arguments, prefix=prefix)
    if "Device not supported" in printed:  # this happens under gVisor
        pytest.skip("compute-sanitizer: Device not supported")
    (line,) = sanitizer.parse_output(name, printed)
    assert (line["passed"], status) == (True, 0), printed[-3000:]
    assert read_notes(notes)[0]["number"] > 0
