"""Times of operators on a device, compared with other packages and with the peak rates of the device."""

import gc
import statistics
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from trigraph.benchmarks.measure import compute_relative_error, convert_to_numpy
from trigraph.benchmarks.programs import Call, Contender
from trigraph.benchmarks.qualify.part import Notes
from trigraph.benchmarks.qualify.place import Device
from trigraph.benchmarks.qualify.workloads import WORKLOADS, choose_workload_sizes, convert_indices
from trigraph.benchmarks.run import compute_peer_tolerance
from trigraph.benchmarks.workloads import WorkloadInputs, draw_workload_inputs, make_backend_call
from trigraph.table import evaluate_expression

ALONE = True
ROUNDS = 7
BLOCK = 0.02  # seconds of short calls to time together
DTYPE = np.dtype(np.float32)
INDICES = ("int64", "int32")


def list_parts(target: Device) -> list[str]:
    """Return the names of the workloads, in order of importance."""
    return [workload.name for workload in WORKLOADS][: target.shrink_in_rehearsal(len(WORKLOADS), 1)]


def run_part(part: str, target: Device, notes: Notes) -> None:
    """Time one workload: trigraph with both index dtypes, then trigraph and each peer alternately."""
    workload = next(w for w in WORKLOADS if w.name == part)
    sizes = choose_workload_sizes(target, workload)
    case = draw_workload_inputs(workload, sizes, DTYPE)
    ours: dict[str, Call] = {}
    for index in INDICES:
        own = case if index == "int64" else convert_indices(case, np.int32)
        ours[index] = make_backend_call(workload, target.backend, own)
        measured = time_calls_alternately(target, {"trigraph": ours[index]})
        times = measured["trigraph"]
        notes.add(
            f"trigraph, {index}",
            workload=part,
            contender="trigraph",
            index=index,
            seconds=statistics.median(times),
            samples=times,
            summary=workload.summary,
            sizes=sizes,
            least=_compute_least_work(own, sizes),
        )
    expected = _collect_numpy_results(ours["int64"])
    for name, peer in workload.peers.items():
        if peer.device == target.rehearsal:
            continue
        _time_peer(target, notes, (part, name, "int64"), peer, case, ours["int64"], expected, max(sizes.values()))


def _compute_least_work(case: WorkloadInputs, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return lower bounds on the work, by ceiling: bytes of arrays and indices, operations, and gathered bytes."""
    indices = [a for graph in case.graphs.values() if graph is not None for a in graph.__reduce__()[1]]
    index_bytes = sum(a.nbytes for a in indices if isinstance(a, np.ndarray))
    return {
        "copy": case.workload.count_bytes_moved(sizes, DTYPE) + index_bytes,
        "float32": case.workload.count_operations(sizes),
        "gather": evaluate_expression(case.workload.gathered, sizes) * DTYPE.itemsize,
    }


def _collect_numpy_results(call: Call) -> dict[str, np.ndarray]:
    return {name: convert_to_numpy(value) for name, value in call().items()}


def time_calls_alternately(target: Device, calls: Mapping[str, Call]) -> dict[str, list[float]]:
    """Time calls alternately after a warm-up, with the order reversed in every second round."""
    number = {}
    for name, call in calls.items():
        call()
        number[name] = max(1, round(BLOCK / max(target.measure_seconds(call), 1e-9)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(target.shrink_in_rehearsal(ROUNDS, 2)):
        for name in list(calls) if turn % 2 == 0 else reversed(list(calls)):
            times[name].append(target.measure_seconds(calls[name], target.shrink_in_rehearsal(number[name], 1)))
    return times


def _time_peer(
    target: Device,
    notes: Notes,
    labels: tuple[str, str, str],
    peer: Contender,
    case: WorkloadInputs,
    ours: Call,
    expected: Mapping[str, Any],
    terms: int,
) -> None:
    """Time a peer and trigraph alternately if their results agree; note the reason if the peer cannot run."""
    part, name, index = labels
    entry = {"workload": part, "contender": name, "index": index, "about": peer.about}
    call: Call | None = None
    try:
        call = peer.make(case)
        error, most = (
            compute_relative_error(_collect_numpy_results(call), expected),
            compute_peer_tolerance(DTYPE.name, terms),
        )
        if not (error <= most):
            notes.add(name, False, f"differs by {error:.1e}, more than {most:.1e}", **entry)
            return
        times = time_calls_alternately(target, {"trigraph": ours, name: call})
        own, peer_seconds = (statistics.median(times[n]) for n in ("trigraph", name))
        notes.add(name, None, "", seconds=peer_seconds, ratio=peer_seconds / own, error=error, samples=times, **entry)
    except Exception as error:  # an exception, for example for lack of memory, is a finding about the peer
        notes.add(name, None, f"{type(error).__name__}: {str(error)[:300]}", **entry)
    finally:
        call = None
        gc.collect()
        if "torch" in sys.modules and not target.rehearsal:
            sys.modules["torch"].cuda.empty_cache()
        target.measure_free_bytes()
