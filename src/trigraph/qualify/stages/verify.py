"""`trigraph verify` of every family on the device, one after the other."""

from __future__ import annotations

import json

from trigraph.operators import DEFINITIONS
from trigraph.qualify.notes import Notes
from trigraph.qualify.place import Device

__all__ = ["parts", "run"]

FAMILIES = tuple(dict.fromkeys(spec.family for spec in DEFINITIONS))
SMALLEST = ("--operator", "basis_embedding_radial_fwd", "--dtype", "float32")


def parts(place: Device) -> list[str]:
    """Return the families; in a rehearsal the one of the smallest operator."""
    return ["gemnet"] if place.rehearsal else list(FAMILIES)


def run(part: str, place: Device, notes: Notes) -> None:
    """Run the command and note what its report says."""
    from trigraph.cli import main

    which = SMALLEST if place.rehearsal else ("--operator", part)
    options = (
        "--panel",
        place.panel,
        "--jobs",
        str(1 if place.rehearsal else place.jobs),
        "--report",
        str(notes.folder),
    )
    status = main(["verify", *which, *options], standalone_mode=False)
    report = json.loads((notes.folder / "report.json").read_text(encoding="utf-8"))
    counts = report["counts"]
    notes.add(f"verify {part}", status == 0, report["verdict"], counts=counts)
