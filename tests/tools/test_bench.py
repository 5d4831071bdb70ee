"""The benchmark itself: does it measure what it says, and does it refuse to time what is wrong?"""

import importlib.util
import json
import os
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from trigraph import pyref
from trigraph.benchmarks import cli, dimenet, gat, gather, gemnet, gno, measure, run, weighted
from trigraph.benchmarks.calls import Unavailable
from trigraph.benchmarks.measure import Measurement, Worker, alternate, relative_error
from trigraph.benchmarks.record import stem
from trigraph.benchmarks.worker import Job
from trigraph.benchmarks.workloads import Target, clock_of, make_call, make_case
from trigraph.fortran.levels import fast_module
from trigraph.panels import PANELS
from trigraph.table import OPERATORS, SYMBOLS, evaluate

MEBIBYTE = 2**20
WORKLOADS = [w for family in run.FAMILIES.values() for w in family.WORKLOADS]
OPTIONS = run.Options(threads=1, repeat=1, dtype="float32", size="small", peers=True)


def tiny(workload):
    """Sizes of a quick run; few nodes, so that every edge meets others."""
    most = {"num_nodes": 9, "num_src_nodes": 9, "num_dst_nodes": 9, "n_spherical": 7}
    most |= {"num_triplets": 61, "num_inputs": 61}
    return {n: min(v, most.get(n, 23 if SYMBOLS[n].minimum == 0 else 5)) for n, v in workload.sizes.items()}


# What workers run: functions of this module, which the child processes import.
def steady(value, nbytes=8):
    return lambda: {"x": np.full(nbytes // 8, value)}


def unavailable():
    raise Unavailable("nothing there")


def failing():
    return lambda: 1 / 0


def dying():
    os._exit(3)


@pytest.fixture(autouse=True)
def measure_once(monkeypatch):
    monkeypatch.setattr(run, "ATTEMPTS", 1)


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def test_relative_error_never_passes_what_cannot_be_compared():
    x = {"x": np.ones(3)}
    assert relative_error(x, x) == 0
    assert relative_error({"x": np.array([1, 1, 1.5])}, x) == pytest.approx(0.5 / np.sqrt(3))
    assert not (relative_error({"x": np.array([1, 1, np.nan])}, x) <= 1e9)
    assert not (relative_error({"x": np.ones(4)}, x) <= 1e9)
    assert not (relative_error({"x": np.ones(3, np.float32)}, x) <= 1e9)
    assert not (relative_error({"y": np.ones(3)}, x) <= 1e9)


@pytest.mark.usefixtures("importable")
def test_only_what_agrees_with_the_baseline_is_timed():
    jobs = {
        "absent": Job(unavailable),
        "baseline": Job(partial(steady, 1.0), warm=partial(steady, 2.0)),
        "same": Job(partial(steady, 1.0)),
        "wrong": Job(partial(steady, 1.1)),
        "nan": Job(partial(steady, np.nan)),
        "failing": Job(failing),
        "dying": Job(dying),
    }
    found = alternate(jobs, repeat=2, threads=1, tolerance=1e-3)
    assert {n: m.status for n, m in found.items()} == {
        "absent": "unavailable",
        "baseline": "timed",
        "same": "timed",
        "wrong": "wrong",
        "nan": "wrong",
        "failing": "failed",
        "dying": "failed",
    }
    assert [n for n, m in found.items() if len(m.seconds) == 2] == ["baseline", "same"]
    assert found["same"].error == 0
    assert "ZeroDivisionError" in found["failing"].note
    assert "status 3" in found["dying"].note


@pytest.mark.usefixtures("importable")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the high-water mark can be reset on Linux only")
def test_peak_memory_is_the_calls_own_whatever_the_parent_holds():
    ballast = np.ones(200 * MEBIBYTE // 8)
    found = alternate({"x": Job(partial(steady, 1.0, 64 * MEBIBYTE))}, repeat=1, threads=1)
    assert 63.5 <= found["x"].peak_bytes / MEBIBYTE < 66  # the kernel counts pages in batches, a few dozen at a time
    assert ballast.size


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch_geometric uses torch's own old names
def test_peers_compute_what_the_panels_compute(workload, dtype):
    sizes = tiny(workload)
    expected = make_call(workload, "fortran", sizes, dtype)()
    for name, peer in workload.peers.items():
        if clock_of(workload, name) != "host" or any(importlib.util.find_spec(m) is None for m in peer.requires):
            continue
        try:
            results = make_call(workload, name, sizes, dtype)()
        except Unavailable:
            assert dtype == "float64" or workload.family == "gemnet"
            continue
        got = {n: v() if callable(v) else getattr(v, "detach", lambda v=v: v)() for n, v in results.items()}
        assert relative_error({n: np.asarray(v) for n, v in got.items()}, expected) <= run._tolerance(dtype), name


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_of_the_table_can_be_timed(name):
    workload = run.operator_workload(name, {})
    assert set(workload.sizes) == set(workload.definitions[0].symbols)
    assert "gpu-host" not in workload.panels
    sizes = tiny(workload)
    assert workload.operations(sizes) == evaluate(OPERATORS[name].operations, sizes)
    results = {panel: make_call(workload, panel, sizes, "float64")() for panel in ("fortran", "pyref")}
    assert relative_error(results["pyref"], results["fortran"]) <= run._tolerance("float64")
    arrays = [*make_case(workload, sizes, np.dtype("float64")).arrays.values(), *results["pyref"].values()]
    assert workload.bytes_moved(sizes, np.dtype("float64")) == sum(a.nbytes for a in arrays)


def test_sizes_of_an_operator():
    sizes = run.operator_workload("gno_message_fwd", {"num_edges": 100}).sizes
    assert (sizes["num_edges"], sizes["num_positions"], sizes["hidden"]) == (100, 100, 64)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_workloads_are_honest(workload):
    for step in workload.steps:
        if step.operations is not None:
            assert 0 < evaluate(step.operations, workload.sizes) < evaluate(step.op.operations, workload.sizes)
    assert "gpu-host" not in {*workload.panels, *workload.peers}
    assert not set(workload.peers) & set(PANELS)
    assert {t.peer for t in workload.targets} <= {*workload.peers, "fortran"}
    done = set()
    for step in workload.steps:  # a step is given what earlier ones return
        assert set(step.given) <= {a.name for a in step.op.arguments}
        assert set(step.given.values()) <= done
        done |= {f"{step.operator}.{f.name}" for f in step.fields}


def test_cases_stay_clear_of_kinks():
    workload = gno.WORKLOADS[0]
    sizes = {**workload.sizes, "num_edges": 2000}
    case = make_case(workload, sizes, np.dtype("float32"))
    z = pyref.gno_kernel_kinks(case["coords"], case["params"], sizes["f_in"], sizes["f_out"])
    assert np.abs(z).min() >= 64 * np.finfo(np.float32).eps


def test_edges_come_in_both_directions():
    sizes = {**dimenet.SIZES, "num_edges": 301, "num_nodes": 40}
    graph = make_case(dimenet.WORKLOADS[1], sizes, np.dtype("float32")).graph
    assert (graph.num_edges, graph.num_nodes, graph.has_parallel_edges) == (301, 40, False)
    assert np.sum(graph.reverse_edge < 0) == 1
    assert np.all(graph.src != graph.dst)
    alone = make_case(dimenet.WORKLOADS[1], {**sizes, "num_edges": 3, "num_nodes": 1}, np.dtype("float32")).graph
    assert alone.num_triplets(None) == 9


def test_distances_and_frequencies_are_drawn_as_the_table_says():
    case = make_case(dimenet.WORKLOADS[0], {**dimenet.SIZES, "num_edges": 1000}, np.dtype("float64"))
    assert 0 < case["dist"].min() < case["dist"].max() < 1
    assert np.pi <= case["freq"].min()
    assert case["grad_sbf_rad"].min() < 0


def test_steps_hand_results_on():
    workload = dimenet.WORKLOADS[-1]
    sizes = tiny(workload)
    case = make_case(workload, sizes, np.dtype("float64"))
    assert not {"rbf", "gg_rbf", "grad_sbf_rad"} & set(case.arrays)
    results = make_call(workload, "pyref", sizes, "float64")()
    widths = {n: sizes[n] for n in ("n_spherical", "envelope_exponent")}
    sbf = pyref.radial_basis_fwd(case["dist"], case["freq"], **widths).sbf_rad
    out = pyref.agg_edge_to_edge_fwd(
        case["vec"], sbf, case["embedding"], case["weights"], case.graph, sizes["n_spherical"], sizes["n_radial"]
    )
    assert np.array_equal(results["agg_edge_to_edge_fwd.out"], out)
    assert not {s for step in workload.steps for s in step.given.values()} & set(results)


def test_what_is_absent_is_neither_drawn_nor_returned():
    workload = gat.WORKLOADS[0]
    sizes = tiny(workload)
    case = make_case(workload, sizes, np.dtype("float32"))
    assert set(case.arrays) == {"src_embedding", "dst_embedding", "attention_weights", "grad_output_embedding"}
    assert case["attention_weights"].shape == (2 * sizes["num_heads"] * sizes["dim_head"],)
    results = make_call(workload, "pyref", sizes, "float32")()
    assert set(results) == {"mha_gat_n2n_fwd.output_embedding", *(f"mha_gat_n2n_bwd.{n}" for n in gat.GRADIENTS)}
    outputs = workload.output_bytes(sizes, np.dtype("float32"))
    scores = 4 * 2 * sizes["num_heads"] * sizes["num_positions"]
    assert outputs == scores + sum(a.nbytes for a in results.values())


def test_settings_choose():
    workload = replace(weighted.WORKLOADS[-1], settings={"op": "max"})
    sizes = tiny(workload)
    results = make_call(workload, "fortran", sizes, "float64")()
    assert set(results) - {weighted.OUT} == {
        "agg_weighted_n2n_fwd.output_extrema_location",
        "agg_weighted_n2n_bwd.embedding",
        "agg_weighted_n2n_bwd.edge_weight",
    }
    case = make_case(workload, sizes, np.dtype("float64"))
    messages = case["edge_weight"][:, None] * case["embedding"][case.graph.indices]
    first = messages[: case.graph.offsets[1]]
    assert np.array_equal(results[weighted.OUT][0], first.max(0) if len(first) else np.zeros(sizes["dim"]))
    assert case["edge_weight"].min() >= 0.5


def test_arguments_of_one_name_and_two_shapes():
    workload = gemnet.WORKLOADS[0]
    case = make_case(workload, tiny(workload), np.dtype("float32"))
    assert {"basis_embedding_spherical.weight", "interaction_bilinear.weight"} < set(case.arrays)
    assert not {"weight", "rad_W1", "grad_rad_W1"} & set(case.arrays)


def test_layouts():
    even, uneven, quadruplets = (make_case(w, w.sizes, np.dtype("float32")) for w in gemnet.WORKLOADS)
    assert set(np.diff(even.graphs["triplets"].offsets)) == {12}
    assert set(np.diff(quadruplets.graphs["triplets"].offsets)) == {30}
    assert uneven.graphs["triplets"].max_size == 600
    assert uneven.graphs["atoms"] is None
    sizes = {**weighted.SIZES, "num_positions": 40_000, "num_edges": 40_000, "num_src_nodes": 2000, "dim": 1}
    sizes["num_dst_nodes"] = 2000
    uniform, law = (make_case(w, sizes, np.dtype("float32")).graph for w in weighted.WORKLOADS[:2])
    assert uniform.max_in_degree < 60
    assert law.max_in_degree > 500
    assert (law.num_src_nodes, law.num_positions, law.num_edges) == (2000, 40_000, 40_000)


def test_order_of_the_backward_is_what_the_graph_builds():
    workload = weighted.WORKLOADS[-1]
    sizes = tiny(workload)
    order = make_case(workload, sizes, np.dtype("float32")).graph.prepare()
    assert workload.order_bytes(sizes) == sum(a.nbytes for a in order)
    assert gno.WORKLOADS[0].order_bytes(gno.WORKLOADS[0].sizes) == 0


def test_memory_beyond_outputs():
    workload = weighted.WORKLOADS[-1]
    options = replace(OPTIONS, size="full")
    least = workload.output_bytes(workload.sizes, np.dtype("float32")) + workload.order_bytes(workload.sizes)
    for peak, met in ((least, True), (least + 10**6, False)):
        found = run.Result(workload, workload.sizes, "float32", {"fortran": Measurement((1.0,), peak)}, (0, 0), None)
        assert [(v.what, v.met) for v in found.verdicts("fortran", options)] == [("lean", met)]


def test_verdict_on_scaling():
    options = replace(OPTIONS, size="full", threads=2)

    def found(own, copy):
        seconds = {"fortran, threads: 1": own, "fortran, threads: 2": 1.0, "copy, threads: 1": copy}
        measured = {n: Measurement((t,)) for n, t in seconds.items()} | {"copy, threads: 2": Measurement((1.0,))}
        return run.Scaling(weighted.WORKLOADS[0], 2, measured, (0, 0), None)

    assert found(1.53, 1.8).gain("copy") == 1.8
    assert [v.met for v in found(1.54, 1.8).verdicts(options)] == [True]
    assert [v.met for v in found(1.52, 1.8).verdicts(options)] == [False]
    assert found(1.54, 1.8).verdicts(replace(options, size="small")) == []
    absent = replace(found(1.0, 1.0), measured={**found(1.0, 1.0).measured, "copy, threads: 1": Measurement()})
    assert [v.met for v in absent.verdicts(options)] == [None]


def test_scaling_is_measured_with_both_numbers_of_threads():
    workload = replace(weighted.WORKLOADS[0], sizes={**tiny(weighted.WORKLOADS[0])})
    assert run.scaling(workload, OPTIONS, 2**16) is None
    assert run.scaling(gno.WORKLOADS[0], replace(OPTIONS, threads=2), 2**16) is None
    found = run.scaling(workload, replace(OPTIONS, threads=2), 2**16)
    assert len(found.measured) == 4
    assert all(m.status == "timed" for m in found.measured.values())
    assert found.measured["fortran, threads: 2"].error == 0
    pools = {n: m.pools for n, m in found.measured.items()}
    for name, threads in (("fortran, threads: 1", 1), ("fortran, threads: 2", 2)):
        assert all(p["num_threads"] <= threads for p in pools[name])


def test_fairchem_is_found_in_a_folder_or_its_wheel(tmp_path, monkeypatch):
    monkeypatch.delenv(gemnet.VARIABLE, raising=False)
    monkeypatch.setattr(gemnet, "VERSION", "0.0.1")
    with pytest.raises(Unavailable, match=r"pip download fairchem-core==0\.0\.1 --no-deps"):
        gemnet._root()
    monkeypatch.setenv(gemnet.VARIABLE, str(tmp_path))
    with pytest.raises(Unavailable):
        gemnet._root()
    wheel = tmp_path / "fairchem_core-0.0.1-py3-none-any.whl"
    wheel.touch()
    assert gemnet._root() == str(wheel)
    (tmp_path / "fairchem" / "core").mkdir(parents=True)
    assert gemnet._root() == str(tmp_path)


def test_sweep_over_in_degrees():
    workload = dimenet.WORKLOADS[1]
    points = [workload.at(p, workload.sizes) for p in workload.sweep]
    assert {p["num_edges"] for p in points} == {workload.sizes["num_edges"]}
    assert [workload.position(p) for p in points] == pytest.approx(workload.sweep)


def test_sweep_in_turn():
    (workload,) = run.find_workloads((), ("dimenet-aggregate",))
    workload = replace(workload, sizes={**workload.sizes, "num_edges": 300, "num_nodes": 30}, sweep=(5, 10))
    options = replace(OPTIONS, size="full", dtype="float32", contenders=())
    results = run.sweep_in_turn(workload, options)
    assert [r.sizes["num_edges"] / r.sizes["num_nodes"] for r in results] == [5, 10]
    costs = [r.measured["fortran"].median for r in results]
    (verdict,) = run.flatness(results, options)
    assert verdict.reached == pytest.approx(min(costs) / max(costs))
    assert run.sweep_in_turn(workload, replace(options, contenders=("pyg",))) == []
    assert run.sweep_in_turn(replace(workload, targets=()), options) == run.flatness([], options) == []


def test_flatness_and_share_of_gemm():
    workload = dimenet.WORKLOADS[1]
    options = replace(OPTIONS, size="full")

    def point(edges, *seconds):
        sizes = {**workload.sizes, "num_edges": edges}
        return run.Result(workload, sizes, "float32", {"fortran": Measurement(seconds, 1)}, (0, 0), None)

    (verdict,) = run.flatness([point(100, 1.0), point(200, 2.2)], options)
    assert (verdict.reached, verdict.met) == (pytest.approx(1 / 1.1), True)
    (verdict,) = run.flatness([point(100, 1.0), point(200, 2.4)], options)
    assert verdict.met is False
    (verdict,) = run.flatness([point(100, 1.0), point(200)], options)
    assert verdict.met is None
    assert run.flatness([point(100, 1.0)], OPTIONS) == []
    full = point(workload.sizes["num_edges"], 2.0)
    rate = workload.operations(workload.sizes) / 2.0
    assert [v.met for v in full.verdicts("fortran", options, {"float32": 3.9 * rate})] == [True]
    assert [v.met for v in full.verdicts("fortran", options, {"float32": 4.1 * rate})] == [False]
    assert [v.met for v in full.verdicts("fortran", options)] == [None]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_gathered_rows_are_added(width, dtype):
    """What is timed as the ceiling does read the rows that it is to read: their sum, as integers that wrap around."""
    rng = np.random.default_rng(width)
    rows = np.ascontiguousarray(rng.standard_normal((50, width)).astype(dtype)).view(np.int32)
    index, total = rng.integers(0, 50, 333).astype(np.int32), np.zeros(rows.shape[1], np.int32)
    for threads in (1, 2, 5):
        assert fast_module().gather(threads, index, rows.T, total) == 0
        assert np.array_equal(total, rows[index].sum(0, dtype=np.int32))
    assert fast_module().gather(1, index[:0], rows.T, total) == 0
    assert not total.any()
    odd = np.zeros((3, 5), np.int32)
    assert fast_module().gather(1, index[:0], odd.T, odd[0]) == 1


def test_bound_of_gathering():
    """Rows that are gathered count by their time, all other bytes by the rate of a copy."""
    workload = next(w for w in gather.WORKLOADS if w.name == "weighted-backward-20k-64")
    nodes, edges, width = 20_000, 400_000, 64
    streamed = 4 * (nodes * width + 2 * edges)  # gradient of the embedding; weights and their gradient
    assert workload.streamed_bytes(workload.sizes, np.dtype(np.float32)) == streamed
    measured = {"fortran": Measurement((4.0,)), "gather": Measurement((1.0,))}
    found = run.Result(workload, workload.sizes, "float32", measured, (0, 0), None)
    tops = {"copy": streamed / 2.2, "float32": 1.0}
    assert found.bound(tops) == pytest.approx(3.2)
    assert found.gather_share("fortran", tops) == pytest.approx(0.8)
    (verdict,) = found.verdicts("fortran", replace(OPTIONS, size="full"), tops)
    assert (verdict.what, verdict.least, verdict.met) == ("gather", 0.75, True)
    assert replace(found, measured={"fortran": Measurement((4.0,))}).gather_share("fortran", tops) is None


def test_gathers_are_timed_beside_the_operator():
    """With indices of the workload; they run only where they are named."""
    assert not any(w.family == "gather" for w in run.find_workloads((), ()))
    (workload,) = run.find_workloads((), ("attention-backward-20k-32",))
    found = run.run_workload(workload, OPTIONS)
    assert {n for n, m in found.measured.items() if m.status == "timed"} == {"fortran", "gather"}
    assert found.gather_share("fortran", {"copy": 1e10}) > 0


def result(sizes, fast, peer):
    workload = replace(gno.WORKLOADS[0], targets=(Target("numpy", time=2.0, memory=3.0),))
    return run.Result(workload, sizes or workload.sizes, "float32", {"fortran": fast, "numpy": peer}, (0, 0), None)


def test_verdicts():
    fast = Measurement((1.0, 3.0, 2.0), peak_bytes=10)
    assert fast.quartiles == (1.5, 2.0, 2.5)
    peer = Measurement((5.0,), peak_bytes=20)
    options = replace(OPTIONS, size="full")
    assert result(None, fast, peer).ratios("numpy") == (2.5, 2.0)
    assert [(v.what, v.met) for v in result(None, fast, peer).verdicts("numpy", options)] == [
        ("time", True),
        ("memory", False),
    ]
    absent = Measurement(status="unavailable")
    assert [v.met for v in result(None, fast, absent).verdicts("numpy", options)] == [None, None]
    assert [v.met for v in result(None, absent, peer).verdicts("numpy", options)] == [None, None]
    assert result({**gno.WORKLOADS[0].sizes, "num_edges": 5}, fast, peer).verdicts("numpy", options) == []


def test_command_writes_record_and_plot(tmp_path, monkeypatch):
    monkeypatch.setattr(gno, "WORKLOADS", (replace(gno.WORKLOADS[0], sweep=(300, 3000), panels=("fortran",)),))
    arguments = [
        "--workload",
        "gno-coords-16",
        "--size",
        "small",
        "--repeat",
        "1",
        "--threads",
        "1",
        "--out",
        str(tmp_path),
    ]
    ran = CliRunner().invoke(cli.bench, arguments, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    (path,) = tmp_path.glob("*.json")
    assert path.with_suffix(".png").stat().st_size > 10_000
    text = path.read_text()
    assert str(Path.home()) not in text
    record = json.loads(text)
    assert path.stem == stem(record)
    options = {"threads": 1, "repeat": 1, "dtype": "float32", "size": "small", "peers": True, "contenders": []}
    assert record["options"] == options
    assert (record["deadline"], record["left_out"]) == (None, [])
    assert record["ceilings"]["host"].keys() == {"copy", "float32", "float64"}
    (entry,) = record["results"]
    contenders = entry["contenders"]
    assert contenders["fortran"]["time_over_fast"] == 1
    assert contenders["numpy"]["time_over_fast"] == contenders["numpy"]["median_s"] / contenders["fortran"]["median_s"]
    assert contenders["numpy"]["relative_error"] <= run._tolerance("float32")
    assert len(record["sweeps"]["gno-coords-16"]) == 1
    assert record["scalings"] == {}


def test_command_without_peers_or_files():
    arguments = ["--operator", "gno_aggregate_fwd", "--sizes", "num_edges=50", "--size", "small", "--repeat", "1"]
    ran = CliRunner().invoke(cli.bench, [*arguments, "--no-peers"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert "fortran-reference" in ran.output
    assert "Record" not in ran.output


def test_command_with_some_contenders_and_a_deadline(tmp_path, monkeypatch):
    """Only what was asked for runs; a workload that would not fit is left out, and the record says so."""
    tiny_one = replace(gno.WORKLOADS[0], sizes=tiny(gno.WORKLOADS[0]), sweep=())
    others = [replace(tiny_one, name=name) for name in ("gno-coords-32", "gno-message")]
    monkeypatch.setattr(gno, "WORKLOADS", (tiny_one, *others))
    slept = iter([0.0, 5.0, 0.0])
    real = cli.run_workload
    monkeypatch.setattr(cli, "run_workload", lambda *args: (clock.append(next(slept)), real(*args))[1])
    clock: list[float] = []
    monkeypatch.setattr(cli.time, "monotonic", lambda: sum(clock))
    arguments = ["--family", "gno", "--size", "small", "--repeat", "1", "--threads", "1", "--out", str(tmp_path)]
    arguments += ["--contender", "numpy", "--contender", "fortran", "--deadline", "7"]
    ran = CliRunner().invoke(cli.bench, arguments, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert "Left out, since 7 s would not do: gno-message" in ran.output
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert (record["deadline"], record["left_out"]) == (7, ["gno-message"])
    assert record["options"]["contenders"] == ["numpy", "fortran"]
    assert [r["workload"] for r in record["results"]] == ["gno-coords-16", "gno-coords-32"]
    assert [list(r["contenders"]) for r in record["results"]] == [["fortran", "numpy"]] * 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--workload", "gno-message", "--contender", "cusparse"],
        ["--contender", "nobody"],
        ["--deadline", "0"],
        ["--sizes", "num_edges=5"],
        ["--operator", "gno_kernel_fwd", "--sizes", "num_edges"],
        ["--operator", "gno_kernel_fwd", "--sizes", "length=5"],
        ["--operator", "gno_kernel_fwd", "--workload", "gno-message"],
        ["--workload", "nothing"],
        ["--threads", "0"],
        ["--threads", "1000000000"],
        ["--repeat", "1000000000"],
        ["--deadline", "nan"],
        ["--deadline", "inf"],
        ["--deadline", "-1"],
        ["--operator", "gno_kernel_fwd", "--sizes", "num_edges=\u00b2"],  # a superscript is a digit, and no number
        ["--operator", "gno_kernel_fwd", "--sizes", "num_edges=" + "9" * 5000],
        ["--operator", "gno_kernel_fwd", "--sizes", "num_edges=900000000000"],
        ["--operator", "gno_kernel_fwd", "--sizes", f"num_edges={2**40}", "--sizes", f"f_out={2**40}"],
    ],
)
def test_command_refuses(arguments, monkeypatch):
    monkeypatch.setattr(cli, "ceilings", lambda *arguments: pytest.fail("it began"))
    ran = CliRunner().invoke(cli.bench, arguments)
    assert (ran.exit_code, ran.output.count("Error: ")) == (2, 1), ran.output


def test_an_interrupted_worker_ends_at_once():
    def press(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    begun = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 2)
        with pytest.raises(KeyboardInterrupt), Worker(1) as worker:
            worker.ask("open", Job(partial(time.sleep, 600)))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begun < measure.END


def test_file_names():
    xeon = {"cpu": {"model": "Intel(R) Xeon(R) Processor", "processors": 2}, "device": {"name": None}}
    kept = {"created": "2026-11-21T10:00:00+00:00", "architecture": "x86_64", "environment": xeon}
    assert stem(kept) == "2026-11-21-xeon-2core"
    other = {"cpu": {"model": "unknown", "processors": 16}, "device": {"name": "NVIDIA H200"}}
    assert stem({**kept, "environment": other}) == "2026-11-21-x86_64-16core-nvidia-h200"
