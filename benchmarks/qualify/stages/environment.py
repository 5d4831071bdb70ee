"""Properties of the device, software versions, and ceilings (peak rates) that limit every kernel."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.benchmarks.measure import make_copy_call, make_matmul_call
from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.environment import collect_environment, list_tf32_warnings

ALONE = True
ROUNDS = 7
GATHER = Path(__file__).resolve().parents[2] / "gather.cu"
QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current"


def list_parts(target: Device) -> list[str]:
    """Return the name of the only part."""
    return ["device"]


def run_part(part: str, target: Device, notes: Notes) -> None:
    """Note versions, properties, clocks and ceilings."""
    notes.add("environment", collected=collect_environment(), properties=target.collect_properties())
    problems = list_tf32_warnings()
    notes.add("products are in float32", not problems, "; ".join(problems))
    _note_clocks(notes)
    notes.add("memory", free_bytes=target.measure_free_bytes())
    for name, rate, unit in measure_ceilings(target):
        notes.add(f"ceiling: {name}", ceiling=name, value=rate, unit=unit)


def _note_clocks(notes: Notes) -> None:
    """Note the clocks that nvidia-smi reports, if it is installed."""
    if shutil.which("nvidia-smi") is None:
        notes.add("clocks", None, "nvidia-smi was not found")
        return
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        notes.add("clocks", None, "nvidia-smi did not respond")
        return
    notes.add("clocks", None, done.stderr, asked=QUERY, answer=done.stdout.splitlines())


def measure_least_seconds(target: Device, call: Any, number: int = 1) -> float:
    """Return the seconds per call in the fastest round, after a warm-up call."""
    call()
    return min(target.measure_seconds(call, number) for _ in range(ROUNDS))


def measure_ceilings(target: Device) -> list[tuple[str, float, str]]:
    """Measure the peak rates of copies, gathers (rows of 256 bytes) and matrix products, and the time of a launch."""
    nbytes, n = target.shrink_in_rehearsal(2**31, 2**20), target.shrink_in_rehearsal(8192, 64)
    rates = [
        ("copy", 2 * nbytes / measure_least_seconds(target, make_copy_call(target.xp.__name__, nbytes)), "bytes/s")
    ]
    products = ("float16", "float32", "float64")
    seconds = {
        dtype: measure_least_seconds(target, make_matmul_call(target.xp.__name__, n, dtype)) for dtype in products
    }
    rates += [(dtype, 2 * n**3 / time, "operations/s") for dtype, time in seconds.items()]
    width, rows, launches = 64, nbytes // 256, target.shrink_in_rehearsal(2000, 20)
    table, count = target.xp.ones((rows, width), np.float32), 4 * rows
    index = target.move_to_device(np.random.default_rng(0).integers(0, rows, count).astype(np.int32))
    rates.append(("launch", measure_least_seconds(target, _make_gather_call(target, table, index[:1]), launches), "s"))
    rates.append(
        (
            "gather",
            count * (4 * width + 4) / measure_least_seconds(target, _make_gather_call(target, table, index)),
            "bytes/s",
        )
    )
    return rates


def _make_gather_call(target: Device, table: Any, index: Any) -> Any:
    """Return a call that reads the indexed rows of a table and sums them in chunks."""
    xp = target.xp
    if target.rehearsal:
        return lambda: table[index].sum()
    module = xp.RawModule(code=GATHER.read_text(encoding="utf-8"), options=("-std=c++17",))
    function, block = module.get_function("sum_gathered_rows"), 256
    chunk = 16
    groups = -(-index.size // chunk)
    out = xp.empty((groups, table.shape[1]), table.dtype)
    grid = (-(-groups * 16 // block),)
    arguments = (table, index, out, np.int64(index.size))
    return lambda: function(grid, (block,), arguments)
