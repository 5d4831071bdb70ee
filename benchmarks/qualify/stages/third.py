"""`trigraph verify` of every operator's third derivatives on the device, through torch."""

from typing import Any

from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.stages import verify
from trigraph.benchmarks.qualify.stages.torch import explain_missing_torch
from trigraph.table import THIRD

AT_ONCE = True  # parts may run concurrently, because each is one process


def list_parts(target: Device) -> list[str]:
    """Return the names of the operators; in a rehearsal, one of them."""
    return list(THIRD)[: target.shrink_in_rehearsal(len(THIRD), 1)]


def run_part(part: str, target: Device, notes: Notes) -> None:
    """If torch is installed, run the command, which ends the process."""
    from trigraph.cli import main

    if why := explain_missing_torch(target):
        return notes.add(part, None, why)
    device = "cpu" if target.rehearsal else "cuda:0"
    return main(["verify", "--framework", "torch", "--device", device, "--operator", part])


def parse_output(part: str, output: str) -> list[dict[str, Any]]:
    """Return the command's result if the command ran."""
    return verify.parse_output(part, output) if output.strip() else []
