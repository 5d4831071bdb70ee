"""Tests of the benchmarks: measurements are correct, and contenders with incorrect results are not timed."""

import json
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import bench_jobs
import numpy as np
import pytest
from click.testing import CliRunner

from trigraph import pyref
from trigraph.backends import BACKENDS
from trigraph.benchmarks import cli, dimenet, gat, gemnet, gno, run
from trigraph.benchmarks.device_workloads import DEVICE
from trigraph.benchmarks.measure import (
    ContenderJob,
    JobRunner,
    Measurement,
    compute_relative_error,
    convert_to_numpy,
    time_jobs_alternately,
)
from trigraph.benchmarks.originals import VARIABLE, WheelRelease, load_modules
from trigraph.benchmarks.workloads import draw_workload_inputs
from trigraph.table import OPERATORS, SYMBOLS, evaluate_expression

WORKLOADS = [w for family in run.FAMILIES.values() for w in family.WORKLOADS]
FLOAT32 = np.dtype("float32")


def shrink_sizes(workload):
    """Return sizes for a quick run, with so few nodes that edges share nodes."""
    most = {"num_nodes": 9, "num_src_nodes": 9, "num_dst_nodes": 9, "num_spherical": 3}
    most |= {"num_triplets": 61, "num_inputs": 61}
    return {n: min(v, most.get(n, 23 if SYMBOLS[n].minimum == 0 else 5)) for n, v in workload.sizes.items()}


@pytest.fixture(autouse=True)
def _limit_to_one_attempt(monkeypatch):
    """Limit each measurement to one attempt."""
    monkeypatch.setattr(run, "ATTEMPTS", 1)


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_incomparable_results_never_pass_relative_error():
    x = {"x": np.ones(3)}
    assert compute_relative_error(x, x) == 0
    assert compute_relative_error({"x": np.array([1, 1, 1.5])}, x) == pytest.approx(0.5 / np.sqrt(3))
    for other in ({"x": np.array([1, 1, np.nan])}, {"x": np.ones(4)}, {"x": np.ones(3, np.float32)}, {"y": np.ones(3)}):
        assert not (compute_relative_error(other, x) <= 1e9)


def test_only_contenders_that_agree_are_timed():
    """Incorrect or failing contenders are not timed; a call's peak memory excludes the parent process's memory."""
    ballast = np.ones(2**24)
    large = 64 * 2**20
    jobs = {
        "absent": ContenderJob(bench_jobs.raise_unavailable),
        "baseline": ContenderJob(
            partial(bench_jobs.make_constant_job, 1.0, large), warm=partial(bench_jobs.make_constant_job, 2.0)
        ),
        "same": ContenderJob(partial(bench_jobs.make_constant_job, 1.0, large)),
        "nan": ContenderJob(partial(bench_jobs.make_constant_job, np.nan, large)),
        "failing": ContenderJob(bench_jobs.make_failing_job),
        "dying": ContenderJob(bench_jobs.exit_with_status_3),
    }
    measurements = time_jobs_alternately(jobs, repeat=2, threads=1, tolerance=1e-3)
    timed = ["unavailable", "timed", "timed", "wrong", "failed", "failed"]
    assert [m.status for m in measurements.values()] == timed
    assert [n for n, m in measurements.items() if len(m.seconds) == 2] == ["baseline", "same"]
    assert measurements["same"].error == 0
    assert "ZeroDivisionError" in measurements["failing"].note
    assert "status 3" in measurements["dying"].note
    assert 63.5 <= measurements["same"].peak_bytes / 2**20 < 66  # Linux updates page counts in batches
    assert ballast.size


# ---- workloads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch_geometric uses deprecated torch names
def test_peers_compute_the_same_results_as_backends(workload):
    sizes = shrink_sizes(workload)
    expected = workload.make_contender_call("fortran", sizes, "float32")()
    for name in set(workload.contenders) & set(workload.peers):
        try:
            results = workload.make_contender_call(name, sizes, "float32")()
        except ModuleNotFoundError:
            assert name == "fairchem"
            continue
        got = {n: convert_to_numpy(v) for n, v in results.items()}
        assert compute_relative_error(got, expected) <= run.compute_peer_tolerance("float32"), name


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_workloads_are_consistent(workload):
    for step in workload.steps:
        if step.operations is not None:
            assert (
                0
                < evaluate_expression(step.operations, workload.sizes)
                < evaluate_expression(step.op.operation_count_expression, workload.sizes)
            )
    assert "gpu-host" not in {*workload.backends, *workload.peers}
    assert not set(workload.peers) & set(BACKENDS)
    done = set()
    for step in workload.steps:  # steps use only results of earlier steps
        assert set(step.from_steps) <= {a.name for a in step.op.arguments}
        assert set(step.from_steps.values()) <= done
        done |= {f"{step.operator}.{f.name}" for f in workload.list_step_results(step)}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_of_the_table_can_be_timed(name):
    workload = run.make_operator_workload(name, {})
    sizes, double = shrink_sizes(workload), np.dtype("float64")
    assert set(workload.sizes) == set(workload.definitions[0].symbols)
    assert "gpu-host" not in workload.backends
    assert workload.count_operations(sizes) == evaluate_expression(OPERATORS[name].operation_count_expression, sizes)
    results = {backend: workload.make_contender_call(backend, sizes, "float64")() for backend in ("fortran", "pyref")}
    assert compute_relative_error(results["pyref"], results["fortran"]) <= run.compute_peer_tolerance("float64")
    arrays = [*draw_workload_inputs(workload, sizes, double).arrays.values(), *results["pyref"].values()]
    assert workload.count_bytes_moved(sizes, double) == sum(a.nbytes for a in arrays)


def test_benchmark_cases_avoid_kinks_and_match_degrees():
    """Random cases avoid kinks, contain both directions of edges between atoms, and have the stated degrees."""
    workload = gno.WORKLOADS[0]
    sizes = {**workload.sizes, "num_edges": 100_000}
    case = draw_workload_inputs(workload, sizes, FLOAT32)
    z = pyref.gno_kernel_kinks(case["coords"], case["params"], sizes["f_in"], sizes["f_out"])
    assert np.abs(z).min() >= 64 * np.finfo(np.float32).eps
    sizes = {**dimenet.SIZES, "num_edges": 301, "num_nodes": 40}
    graph = draw_workload_inputs(dimenet.WORKLOADS[1], sizes, FLOAT32).graph
    assert (graph.num_edges, graph.num_nodes, graph.max_parallel_edges) == (301, 40, 1)
    assert np.sum(graph.reverse_edge < 0) == 1
    alone = draw_workload_inputs(dimenet.WORKLOADS[1], {**sizes, "num_edges": 3, "num_nodes": 1}, FLOAT32).graph
    assert alone.num_triplets(None) == 9
    distances = draw_workload_inputs(dimenet.WORKLOADS[0], dimenet.SIZES, FLOAT32)["dist"]
    assert 0.3 <= distances.min() < distances.max() <= 1
    even, uneven, quadruplets = (draw_workload_inputs(w, w.sizes, FLOAT32).graphs["triplets"] for w in gemnet.WORKLOADS)
    assert set(np.diff(even.offsets)) == {12}
    assert set(np.diff(quadruplets.offsets)) == {30}
    assert uneven.max_size == 600


def test_benchmark_cases_omit_absent_arrays():
    workload = gat.WORKLOADS[0]
    case = draw_workload_inputs(workload, shrink_sizes(workload), FLOAT32)
    assert set(case.arrays) == {"src_embedding", "dst_embedding", "attention_weights", "grad_output_embedding"}
    results = workload.make_contender_call("pyref", shrink_sizes(workload), "float32")()
    gradients = {f"mha_gat_n2n_bwd.{n}" for n in ("src_embedding", "dst_embedding", "attention_weights")}
    assert set(results) == {"mha_gat_n2n_fwd.output_embedding", *gradients}
    workload = gemnet.WORKLOADS[0]  # two of its definitions have a `weight`, with different shapes
    case = draw_workload_inputs(workload, shrink_sizes(workload), FLOAT32)
    assert {"basis_embedding_spherical.weight", "interaction_bilinear.weight"} < set(case.arrays)
    assert not {"weight", "rad_W1", "grad_rad_W1"} & set(case.arrays)
    assert case.graphs["atoms"] is None
    results = workload.make_contender_call("pyref", shrink_sizes(workload), "float64")()
    assert not {s for step in workload.steps for s in step.from_steps.values()} & set(results)


def test_originals_are_found_in_a_folder_or_their_wheel(tmp_path, monkeypatch):
    other = WheelRelease("fairchem-core", "0.0.1", "fairchem/core")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip download fairchem-core==0\.0\.1 --no-deps"):
        other.find_root()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    wheel = tmp_path / "fairchem_core-0.0.1-py3-none-any.whl"
    wheel.touch()
    assert other.find_root() == str(wheel)
    (tmp_path / "fairchem" / "core").mkdir(parents=True)
    assert other.find_root() == str(tmp_path)


def test_loading_originals_leaves_sys_modules_unchanged(tmp_path, monkeypatch):
    """Loading a module with empty parent packages and stand-ins leaves sys.modules unchanged."""
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").write_text("raise RuntimeError\n")
    (folder / "wanted.py").write_text("from absent import number\nfrom .other import letter\n")
    (folder / "other.py").write_text("letter = 'a'\n")
    before = ModuleType("outer")
    monkeypatch.setitem(sys.modules, "outer", before)
    (module,) = load_modules(str(tmp_path), ["outer", "outer.inner"], ["outer.inner.wanted"], {"absent": {"number": 3}})
    assert (module.number, module.letter) == (3, "a")
    left = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in ("outer", "absent")}
    assert left == {"outer": before}


def test_ratios_compare_medians_and_peak_memory():
    fast, peer = Measurement((1.0, 3.0, 2.0), peak_bytes=10), Measurement((5.0,), peak_bytes=20)
    assert fast.quartiles == (1.5, 2.0, 2.5)
    for other, expected in ((peer, (2.5, 2.0)), (Measurement(status="wrong"), (None, None))):
        measured = {"fortran": fast, "numpy": other}
        assert run.BenchmarkResult(WORKLOADS[0], {}, measured, 0.0).compute_ratios_to_first("numpy") == expected


def test_device_timing_synchronizes_and_uses_largest_bound(monkeypatch):
    """Timing waits for the device, peak memory is the decrease of free memory, and the largest bound is used."""
    free, waits = [100, 60], []
    cuda = SimpleNamespace(
        Device=lambda: SimpleNamespace(synchronize=lambda: waits.append(1)),
        runtime=SimpleNamespace(memGetInfo=lambda: (free.pop(0), 0)),
    )
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool))
    runner = JobRunner(ContenderJob(partial(bench_jobs.make_constant_job, 1.0), device=True))
    results, peak = runner.measure_first_call()
    assert (results["x"], peak, len(waits)) == (1, 40, 2)
    runner.sample_seconds()
    assert len(waits) == 4
    attention = next(w for w in DEVICE if w.name == "gat")
    assert [*attention.contenders] == ["gpu", "pyg-cuda"]
    sizes = attention.choose_run_sizes("full")
    result = run.BenchmarkResult(attention, sizes, {}, 0.0)
    gathered = 4 * evaluate_expression(attention.gathered, sizes)
    assert result.compute_least_seconds({"copy": 1e20, "float32": 1e20, "gather": 2.0}) == gathered / 2
    assert (
        result.compute_least_seconds({"copy": 2.0, "float32": 1e20}) == attention.count_bytes_moved(sizes, FLOAT32) / 2
    )


# ---- the command -----------------------------------------------------------------------------------------------------


def invoke_bench(*arguments):
    completed = CliRunner().invoke(cli.bench, [*arguments, "--repeat", "1", "--threads", "1"], catch_exceptions=False)
    assert completed.exit_code == 0, completed.output
    return completed.output


def test_bench_command_writes_a_record(tmp_path):
    chosen = ("--contender", "numpy", "--contender", "fortran")
    output = invoke_bench("--workload", "gno-coords-16", "--size", "small", "--out", str(tmp_path), *chosen)
    (path,) = tmp_path.glob("*.json")
    assert "Record: " in output
    text = path.read_text()
    assert str(Path.home()) not in text
    record = json.loads(text)
    assert path.stem == run.make_file_stem(record)
    options = {"threads": 1, "repeat": 1, "size": "small"}
    assert record["options"] == options | {"contenders": ["numpy", "fortran"], "device": False}
    assert record["peak_rates"] == {}
    (entry,) = record["results"]
    fortran, numpy = (entry["contenders"][name] for name in ("fortran", "numpy"))
    assert entry["bound_s"] is None
    assert [len(one["samples_s"]) for one in (fortran, numpy)] == [1, 1]
    assert fortran["relative_error"] is None
    assert numpy["relative_error"] <= run.compute_peer_tolerance("float32")


def test_bench_command_times_operators():
    output = invoke_bench("--operator", "gno_aggregate_fwd", "--sizes", "num_edges=50", "--size", "small")
    assert "fortran-reference" in output
    assert "Record" not in output
    sizes = run.make_operator_workload("gno_message_fwd", {"num_edges": 100}).sizes
    assert (sizes["num_edges"], sizes["num_positions"], sizes["hidden"]) == (100, 100, 64)


SIZES_OPTION = ["--operator", "gno_kernel_fwd", "--sizes"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--workload", "gno-message", "--contender", "scipy"],
        ["--contender", "nobody"],
        ["--workload", "nothing"],
        ["--operator", "gno_kernel_fwd", "--workload", "gno-message"],
        ["--sizes", "num_edges=5"],
        ["--device", "--operator", "gno_kernel_fwd"],
        [*SIZES_OPTION, "num_edges"],
        [*SIZES_OPTION, "length=5"],
        [*SIZES_OPTION, "num_edges=900000000000"],
        ["--family", "gat", "--workload", "gno-message"],
    ],
)
def test_bench_command_refuses_wrong_options(arguments, monkeypatch):
    monkeypatch.setattr(cli, "measure_workload", lambda *arguments: pytest.fail("it began"))
    completed = CliRunner().invoke(cli.bench, arguments)
    assert (completed.exit_code, completed.output.count("Error: ")) == (2, 1), completed.output
