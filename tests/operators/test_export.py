"""The Fortran sources for programs without Python: they build, and the C functions give the package's results.

The README says how to declare arguments, graphs are checked, and no files of others are written over.
"""

import contextlib
import ctypes
import itertools
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from programs import run

import trigraph
from trigraph import cli
from trigraph.checks import bind_arguments, check_call
from trigraph.fortran import export
from trigraph.fortran.shims import SHIM_SETS, order_of
from trigraph.table import DEFINITIONS, OPERATORS
from trigraph.verification.cases import build, variants

ROOT = Path(__file__).resolve().parents[2]
TYPES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "sources"
    done = CliRunner().invoke(cli.main, ["fortran", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def library(folder):
    """The shared library, built by its meson.build without optimisation on two processors."""
    build_folder = folder.parent / "build"
    options = ["--buildtype=plain", "-Dfortran_args=-O0 -w"]
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    for command in ([*meson, "setup", *options, build_folder, folder], [*meson, "compile", "-C", build_folder]):
        run(*command)
    return ctypes.CDLL(str(next(p for p in build_folder.glob("libtrigraph.*") if p.is_file())))


def call(library, op, case, arguments):
    """Call a C function, as its header and the lists of README.md say."""
    checked = check_call(op, dict(bind_arguments(op, (), arguments, op.signature)), None, None, "numpy", "fortran")
    order, values, sizes, dtype = order_of(op, SHIM_SETS["fast"]), checked.values, checked.sizes, np.dtype(case.dtype)
    index = op.graph.find(op.graph.forward[0][0], values).dtype if op.graph else None
    name = f"trigraph_{op.name}_{TYPES[case.dtype]}" + (f"_{TYPES[str(index)]}" if op.graph else "")
    presence = {n: int(values[n.removeprefix("has_")] is not None) for n in order.dims if n.startswith("has_")}
    passed = [ctypes.c_int(2), *(ctypes.c_int((sizes | presence)[n]) for n in order.dims)]
    passed += [ctypes.c_double(values[n]) for n in order.numbers]
    arrays = []
    for n in order.graph:
        array = op.graph.find(n, values)
        arrays.append(np.full(1, -1, index) if array is None else array.astype(index))
    for a in (a for n in order.inputs for a in op.arguments if a.name == n):
        value = values[a.name]
        absent = value is None and (a.given_back or values.get(a.name.removeprefix("gg_")) is None)
        size = 1 if absent else int(np.prod(trigraph.checks.shape_of(a, sizes)))
        arrays.append(np.zeros(size, index if a.index else dtype) if value is None else value)
    passed += [a.ctypes.data_as(ctypes.c_void_p) for a in arrays]
    fields = {f.name: f for f in op.returned(values, sizes)}
    passed += [ctypes.c_int(n.removeprefix("want_") in fields) for n in order.wants]
    results = {}
    for f in op.fields:
        shape = trigraph.checks.shape_of(f, sizes) if f.name in fields else (1,)
        results[f.name] = np.full(shape, -7, index if f.index else dtype)
    passed += [a.ctypes.data_as(ctypes.c_void_p) for a in results.values()]
    assert getattr(library, name)(*passed) == 0
    # Negative sizes and numbers of threads below 1 are refused before any array is read.
    for place, wrong in [(0, 0), (0, -1), *((k + 1, -1) for k in range(len(order.dims)))]:
        changed = [*passed[:place], ctypes.c_int(wrong), *passed[place + 1 :]]
        assert getattr(library, name)(*changed) == export.REFUSED
    return {n: results[n] for n in fields}


def calls(definition, case):
    """Yield each operator of a definition with arguments: as drawn, and with each result of fwd that it accepts."""
    for op in (o for o in OPERATORS.values() if o.definition is definition):
        arguments = case.arguments(op)
        yield op, arguments
        fwd = getattr(trigraph, f"{definition.name}_fwd")
        for name in (a.name for a in op.arguments if a.given_back):
            back = getattr(fwd(**case.arguments(OPERATORS[fwd.__name__])), name)
            yield op, arguments | {name: back}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_c_functions_give_the_packages_results(library, definition, dtype):
    several = [v for v in variants(definition, ()) if v.kind.differenced or v.name in ("no edges", "no nodes")]
    for variant in several:
        case = build(definition, variant, dtype, 0)
        for op, arguments in calls(definition, case):
            expected = getattr(trigraph, op.name)(**arguments)
            for name, array in call(library, op, case, arguments).items():
                reference = expected if op.single else getattr(expected, name)
                scale = max(np.abs(reference).max(initial=0), 1)
                # This build has no fused multiply-adds, so results differ by rounding; 1,000 eps separate that from any
                # mistake.
                error = np.abs(array - reference).max(initial=0) / scale
                assert error <= 1000 * np.finfo(dtype).eps, (op.name, name, variant.label)


def test_header_and_lists_name_every_function(folder):
    header, readme = (folder / "include" / "trigraph.h").read_text(), (folder / "README.md").read_text()
    for op in OPERATORS.values():
        kinds = itertools.product(("f32", "f64"), ("_i32", "_i64") if op.graph else ("",))
        for real, index in kinds:
            assert f"int trigraph_{op.name}_{real}{index}(" in header
        assert f"### `{op.name}_fast`" in readme
    # The Fortran function behind each C function of the header takes as many arguments as its prototype says.
    interface = "".join(p.read_text() for p in (folder / "src").glob("*_c.f90")).replace("&\n    & ", "")
    for name, arguments in re.findall(r"int (trigraph_\w+)\(([^;]*)\);", header):
        (parameters,) = re.findall(rf"^function {name}\(([^)]*)\)", interface, re.MULTILINE)
        assert arguments.count(",") == parameters.count(",")


def test_constants_are_the_positions_of_choices(folder):
    text = (folder / "src" / "choices.f90").read_text()
    expected = {"mha_gat_n2n_activation_leakyrelu": 2, "agg_weighted_n2n_op_max": 3, "agg_edge_to_edge_exclude_none": 0}
    for name, value in expected.items():
        assert f":: {name} = {value}\n" in text


def test_compilers_of_c_take_the_header(folder, tmp_path):
    for end in ("c", "cpp"):
        (tmp_path / f"a.{end}").write_text(
            '#include "trigraph.h"\nint main(void) { return trigraph_gno_kernel_fwd_f32 == 0; }\n'
        )
        flags = ["-Wall", "-Werror", "-Wno-address", "-fsyntax-only", f"-I{folder / 'include'}"]
        command = ["cc" if end == "c" else "c++", *flags, tmp_path / f"a.{end}"]
        run(*command)


# The lists of arguments

ARGUMENT = re.compile(
    r"- `(\w+)`([ *]*): (?:(integer|real) array `(\(.*?\))`(?:, in the reference `(\w+)(\(.*?\))?`)?|`([^`]*)`)"
)


def listed(readme, ending="_fast"):
    """Return the arguments of each procedure in the README's lists, as the groups of `ARGUMENT`."""
    lists = {}
    for part in re.split("^### ", readme, flags=re.MULTILINE)[1:]:
        if (name := part.split("`")[1]).endswith(ending):
            lines = [line for line in part.splitlines() if line.startswith("- ")]
            lists[name] = [ARGUMENT.match(line).groups() for line in lines]
    return lists


def caller(procedure, module, arguments):
    """A subroutine that declares arguments as the README does, and calls a procedure with them."""
    scalars = ", &\n".join(name for name, _, shape in arguments if not shape)
    lines = [f"subroutine of_{procedure}({scalars})", f"use {module}, only: {procedure}"]
    lines += ["use trigraph_kinds, only: dp, i64", "implicit none"]
    lines += [f"{kind} :: {name}{shape or ''}" for name, kind, shape in sorted(arguments, key=lambda a: bool(a[2]))]
    lines += [f"call {procedure}({', &'.join(f'{name}' for name, _, _ in arguments)})".replace("&", "&\n")]
    return "\n".join([*lines, f"end subroutine of_{procedure}", ""])


@pytest.mark.usefixtures("library")
def test_declarations_of_the_readme_compile(folder):
    """gfortran accepts calls of every procedure with arrays that are declared as the README says."""
    lists = listed((folder / "README.md").read_text())
    assert {name.removesuffix("_fast") for name in lists} == set(OPERATORS)
    kinds = {"integer": "integer(i64)", "real": "real(dp)"}
    program = []
    for name, arguments in lists.items():
        op = OPERATORS[name.removesuffix("_fast")]
        fast, reference = [], []
        for argument, marks, kind, shape, other, other_shape, scalar in arguments:
            declared = kinds[kind] if kind else scalar.split(",")[0]
            if "***" not in marks:
                fast.append((argument, declared, shape))
            if ("***" in marks or "*" not in marks) and argument != "num_threads":
                reference.append((other or argument, declared, other_shape or shape))
        program.append(caller(f"{op.name}_fast", f"trigraph_{op.family}_fast", fast))
        program.append(caller(op.name, f"trigraph_{op.family}", reference))
    source = folder.parent / "declarations.f90"
    source.write_text("\n".join(program))
    (modules,) = {p.parent for p in (folder.parent / "build").rglob("trigraph_gno.mod")}
    run("gfortran", "-fsyntax-only", "-Werror", f"-I{modules}", source)
    # An argument has the same shape in every procedure: results of one are passed to the next.
    shapes = {(name, a[0].lower()): a[3] for name, arguments in lists.items() for a in arguments}
    for before, result, after in (
        ("gno_kernel_fwd_fast", "kernel", "gno_aggregate_fwd_fast"),
        ("radial_basis_fwd_fast", "sbf_rad", "agg_edge_to_edge_fwd_fast"),
        ("basis_embedding_spherical_fwd_fast", "rad_w1", "interaction_bilinear_fwd_fast"),
    ):
        written, read = shapes[before, f"out_{result}"], shapes[after, result]
        assert sorted(re.split(r"[*, ()]+", written)) == sorted(re.split(r"[*, ()]+", read))
        assert written.count(",") == read.count(",")


# Checks of graphs


def edge_arrays(graph, reverse=True):
    """Arguments of check_edge_graph."""
    names = (
        "src",
        "dst",
        "dst_offsets",
        "dst_edge_index",
        "reverse_edge",
        "src_offsets",
        "reverse_start",
        "reverse_stop",
    )
    arrays = [np.array(getattr(graph, n)) if n != "reverse_edge" or reverse else np.zeros(1, np.int64) for n in names]
    return [graph.num_nodes, graph.num_edges, int(reverse), 1, *arrays]


RNG = np.random.default_rng(0)
SOME = trigraph.CSC.from_coo(RNG.integers(0, 7, 30), RNG.integers(0, 5, 30), 7, 5)
ATOMS = trigraph.EdgeGraph.from_positions(2.0 * RNG.random((6, 3)), 1.6, 2.0 * np.eye(3), True).graph
PARALLEL = trigraph.EdgeGraph(ATOMS.src, ATOMS.dst, 6)
MEMBERS = trigraph.Segments(RNG.integers(0, 6, 20), 6)
GRAPHS = {
    "csc": (7, 5, 30, 30, *map(np.array, (SOME.offsets, SOME.indices, SOME.edge_ids))),
    "edge_graph": edge_arrays(ATOMS),
    "edge_graph, parallel": edge_arrays(PARALLEL, False),
    "segments": (20, 6, 1, *map(np.array, (MEMBERS.index, MEMBERS.offsets, MEMBERS.order))),
    "segments in order": (20, 6, 0, np.sort(MEMBERS.index), np.array(MEMBERS.offsets), np.zeros(1, np.int64)),
}
NO_GRAPHS = {
    "csc": (0, 0, 0, 0, np.zeros(1, np.int64), *[np.zeros(0, np.int64)] * 2),
    "edge_graph": edge_arrays(trigraph.EdgeGraph(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)),
    "segments": (0, 0, 1, np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64)),
}


def status_of(library, kind, arguments, index="i64"):
    """Return the status of the check of a graph; it reads nothing beyond the arrays' ends."""
    dtype = {"i32": np.int32, "i64": np.int64}[index]
    arrays = [a if isinstance(a, int) else np.append(a, -99).astype(dtype) for a in arguments]
    passed = [ctypes.c_int(a) if isinstance(a, int) else a.ctypes.data_as(ctypes.c_void_p) for a in arrays]
    return getattr(library, f"trigraph_check_{kind.split(',')[0].split(' ')[0]}_{index}")(*passed)


def changed(arguments, at, change):
    """Return a function's arguments with `change` applied to number `at`."""
    return [change(a.copy()) if k == at else a for k, a in enumerate(arguments)]


def put(place, value):
    def change(array):
        array[place] = value
        return array

    return change


def found_in_header(folder):
    text = (folder / "include" / "trigraph.h").read_text()
    return {name.lower(): int(value) for name, value in re.findall(r"TRIGRAPH_GRAPH_(\w+) = (\d+)", text)}


@pytest.mark.parametrize("index", ["i32", "i64"])
def test_graphs_are_checked(library, folder, index):
    status = found_in_header(folder)
    assert sorted(status.values()) == list(range(1, 8))
    assert status["size"] == export.REFUSED
    documented = (ROOT / "docs" / "fortran.md").read_text()
    assert all(f"| {number} | `graph_{name}` |" in documented for name, number in status.items())
    for kind, arguments in (*GRAPHS.items(), *NO_GRAPHS.items()):
        assert status_of(library, kind, arguments, index) == 0, kind
        for k in range(2):
            assert status_of(library, kind, [*arguments[:k], -1, *arguments[k + 1 :]], index) == status["size"]
    csc, edges, members = GRAPHS["csc"], GRAPHS["edge_graph"], GRAPHS["segments"]
    for expected, kind, arguments in (
        ("first", "csc", changed(csc, 4, lambda a: a + 1)),  # 1-based
        ("range", "csc", changed(csc, 5, lambda a: a + 1)),
        ("range", "csc", changed(csc, 6, lambda a: a + 1)),
        ("fall", "csc", changed(csc, 4, put(2, 0) if csc[4][1] > 0 else put(3, 0))),
        ("last", "csc", changed(csc, 4, put(-1, 31))),
        ("last", "csc", changed(csc, 4, put(slice(1, None), 2**31 - 1))),
        ("range", "csc", changed(csc, 5, put(3, -1))),
        ("range", "csc", changed(csc, 6, put(0, 2**31 - 1))),
        ("range", "edge_graph", changed(edges, 4, lambda a: a + 1)),
        ("range", "edge_graph", changed(edges, 5, lambda a: a + 1)),
        ("order", "edge_graph", changed(edges, 4, lambda a: a[::-1].copy())),
        ("first", "edge_graph", changed(edges, 6, lambda a: a + 1)),
        ("range", "edge_graph", changed(edges, 7, lambda a: a + 1)),
        ("order", "edge_graph", changed(edges, 7, lambda a: a[::-1].copy())),
        ("range", "edge_graph", changed(edges, 8, put(0, -2))),
        ("reverse", "edge_graph", changed(edges, 8, lambda a: a[::-1].copy())),
        ("reverse", "edge_graph", changed(edges, 8, put(0, -1))),
        ("first", "edge_graph", changed(edges, 9, lambda a: a + 1)),
        ("reverse", "edge_graph", changed(edges, 10, lambda a: a + 1)),
        ("range", "segments", changed(members, 3, put(0, 6))),
        ("first", "segments", changed(members, 4, lambda a: a + 1)),
        ("range", "segments", changed(members, 5, lambda a: a + 1)),
        ("order", "segments", changed(members, 5, lambda a: a[::-1].copy())),
        ("order", "segments in order", [*members[:2], 0, *members[3:]]),
    ):
        assert status_of(library, kind, arguments, index) == status[expected], (expected, kind)


def is_right(kind, changed_arguments, same):
    """Whether `trigraph.CSC` accepts the arrays (other kinds of graph derive some of the arrays that Fortran takes)."""
    if kind != "csc":
        return same
    offsets, indices, edge_ids = changed_arguments[4:]
    with contextlib.suppress(ValueError):
        trigraph.CSC(offsets, indices, 7, edge_ids, 30)
        return True
    return False


def test_no_changed_element_of_a_graph_passes(library):
    rng, seen = np.random.default_rng(1), set()
    for kind, arguments in GRAPHS.items():
        for at in (k for k, a in enumerate(arguments) if not isinstance(a, int) and a.size > 1):
            for _ in range(200):
                size = arguments[at].size
                place, value = rng.integers(size), rng.integers(-2, arguments[at].max() + 3)
                wrong = changed(arguments, at, put(place, value))
                status = status_of(library, kind, wrong)
                assert (status == 0) == is_right(kind, wrong, value == arguments[at][place]), (kind, at, place, value)
                seen.add(status)
    assert seen == {0, 2, 3, 4, 5, 6, 7}


GRAPH_PROGRAM = """program graphs
    use trigraph_kinds, only: i32, i64
    use trigraph_graphs
    implicit none
    integer(i64) :: offsets(4) = [0_i64, 2_i64, 2_i64, 3_i64], indices(3) = [2_i64, 0_i64, 1_i64]
    integer(i64) :: rows(3) = [0_i64, 1_i64, 2_i64]
    integer :: status(8)
    call check_csc(3, 3, 3, 3, offsets, indices, rows, status(1))
    call check_csc(3, 3, 3, 3, int(offsets, i32), int(indices, i32), int(rows, i32), status(2))
    call check_csc(3, 3, 3, 3, offsets + 1, indices, rows, status(3))
    call check_csc(3, 3, 3, 3, offsets, indices + 1, rows, status(4))
    call check_csc(3, 3, 3, 3, offsets([1, 2, 4, 3]), indices, rows, status(5))
    call check_csc(0, 0, 0, 0, offsets(:1), indices(:0), rows(:0), status(6))
    call check_segments(3, 3, 1, indices, [0_i64, 1_i64, 2_i64, 3_i64], [1_i64, 2_i64, 0_i64], status(7))
    call check_segments(3, 3, 0, [0_i64, 0_i64, 2_i64], offsets, rows, status(8))  ! destinations of the positions
    print '(8(1x, i0))', status
    print '(3(1x, i0))', graph_first, graph_range, graph_last
end program graphs
"""


@pytest.mark.usefixtures("library")
def test_graphs_are_checked_from_fortran(folder):
    source, program = folder.parent / "graphs.f90", folder.parent / "graphs"
    source.write_text(GRAPH_PROGRAM)
    sources = [folder / "src" / name for name in ("kinds.f90", "graphs.f90")]
    run("gfortran", "-fcheck=all", f"-J{folder.parent}", *sources, source, "-o", program)
    statuses, named = (line.split() for line in run(program).stdout.splitlines())
    first, of_range, _ = named
    assert statuses == ["0", "0", first, of_range, "3", "0", "0", "0"]


# Which files of an earlier export are overwritten


@pytest.fixture
def few(monkeypatch):
    """The export with three short files instead of all sources, whose templates take seconds to expand."""
    files = {"src/a.f90": "a", "src/b.f90": "b", "README.md": "read"}
    monkeypatch.setattr(export, "_contents", lambda vector_bytes: (files, ["src/a.f90", "src/b.f90"]))
    return files


def contents(folder):
    """All files and links below a folder, and what they hold."""
    paths = (p for p in folder.rglob("*") if p.is_symlink() or p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"link" for p in paths}


def refused_for(folder, *words):
    """Assert that the export is refused with this text and changes no file."""
    before = contents(folder.parent)
    done = CliRunner().invoke(cli.main, ["fortran", str(folder)])
    assert done.exit_code == 1
    assert f"Error: {folder} has {', '.join(words)}; expected a new or empty folder, or files that" in done.output
    assert contents(folder.parent) == before


def test_files_of_others_are_not_written_over(few, tmp_path):
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "README.md").write_text("mine")
    refused_for(folder, "README.md", "src")
    (folder / "README.md").unlink()
    (folder / "src").rmdir()
    assert [p.name for p in export.write(folder, 16)] == ["a.f90", "b.f90"]
    (folder / "notes").write_text("mine")
    few["src/a.f90"] = "another"
    export.write(folder, 16)
    assert (folder / "src" / "a.f90").read_text() == "another"
    (folder / "src" / "a.f90").write_text("changed")
    (folder / "README.md").write_text("changed")
    refused_for(folder, "README.md (changed since)", "src/a.f90 (changed since)")
    (folder / "README.md").unlink()
    (folder / "src" / "a.f90").unlink()
    few["fpm.toml"] = "new"
    del few["src/b.f90"]  # a source of another version, which fpm would compile
    (folder / "fpm.toml").write_text("mine")
    refused_for(folder, "fpm.toml")
    (folder / "fpm.toml").unlink()
    export.write(folder, 16)
    assert set(contents(folder)) == {".trigraph-fortran", "README.md", "fpm.toml", "notes", "src/a.f90"}


@pytest.mark.parametrize("link", ["README.md", "src", "src/a.f90", ".trigraph-fortran"])
@pytest.mark.parametrize("before", [True, False])
def test_links_are_not_followed(few, tmp_path, link, before):
    """A symbolic link in place of a folder or of a file of an earlier export is refused, not followed."""
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    if before:
        export.write(folder, 16)
        (folder / link).rename(elsewhere)
    else:
        (folder / link).parent.mkdir(parents=True)
    (folder / link).symlink_to(elsewhere)
    own = [".trigraph-fortran", "README.md", "src"] if before else [link.split("/")[0]]
    manifest = link == ".trigraph-fortran" or not before
    refused_for(folder, *own) if manifest else refused_for(folder, f"{link} (a symbolic link)")


@pytest.mark.parametrize("line", ["", "no digest  README.md", f"{'0' * 64}  ../elsewhere", f"{'0' * 64}  /elsewhere"])
def test_a_damaged_manifest(few, tmp_path, line):
    folder = tmp_path / "project"
    export.write(folder, 16)
    with (folder / ".trigraph-fortran").open("a") as manifest:
        manifest.write(f"{line}\n")
    refused_for(folder, ".trigraph-fortran (not a list of digests)")


def test_an_interrupted_export_can_be_repeated(few, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    export.write(folder, 16)
    few |= {"src/a.f90": "newer", "README.md": "newer"}

    def interrupt(path, data, replace=export._replace):
        if path.name == "b.f90":
            raise KeyboardInterrupt
        replace(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(export, "_replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            export.write(folder, 16)
    assert (folder / "src" / "a.f90").read_text() == "newer"
    export.write(folder, 16)
    assert contents(folder).keys() == {".trigraph-fortran", "README.md", "src/a.f90", "src/b.f90"}
    assert (folder / "README.md").read_text() == "newer"
