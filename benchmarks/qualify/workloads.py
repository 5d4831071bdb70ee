"""Workloads with sizes for a device or a rehearsal."""

from trigraph.benchmarks.device_workloads import WORKLOADS
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.workloads import Workload, convert_indices
from trigraph.table import SYMBOLS

__all__ = ["WORKLOADS", "choose_workload_sizes", "convert_indices"]


def choose_workload_sizes(target: Device, workload: Workload) -> dict[str, int]:
    """Return the sizes of a workload; in a rehearsal, limit numbers of entities to 40 and widths to 8."""
    small = {n: min(v, 40 if SYMBOLS[n].minimum == 0 else 8) for n, v in workload.sizes.items()}
    return {n: target.shrink_in_rehearsal(v, small[n]) for n, v in workload.sizes.items()}
