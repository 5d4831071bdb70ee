"""`trigraph verify` on the device, one family after the other."""

from typing import Any

from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.gpu.instances import INSTANCES

SMALLEST = ("--operator", "basis_embedding_radial_fwd", "--dtype", "float32")
PRINTED = 40  # number of last output lines to keep: the largest error of each operator, and failures


def list_parts(target: Device) -> list[str]:
    """Return the families or, in a rehearsal, the family of the smallest operator."""
    return ["gemnet"] if target.rehearsal else list(INSTANCES)


def run_part(part: str, target: Device, notes: Notes) -> None:
    """Run the command, which ends the process, without a report, because pictures would require matplotlib."""
    from trigraph.cli import main

    which = SMALLEST if target.rehearsal else ("--operator", part)
    jobs = str(1 if target.rehearsal else target.jobs)
    main(["verify", *which, "--backend", target.backend, "--jobs", jobs])


def parse_output(part: str, output: str) -> list[dict[str, Any]]:
    """Return a line with the command's result, and its output about operators and failures."""
    printed = output.strip().splitlines()
    result = next((line for line in reversed(printed) if " passed, " in line), "the command printed no result")
    passed = result.endswith(", 0 failed")
    return [{"name": f"verify {part}", "passed": passed, "note": result, "printed": printed[-PRINTED:]}]
