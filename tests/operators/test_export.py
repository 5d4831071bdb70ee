"""The Fortran sources for programs without Python: they build, by CMake, by fpm and by the README's commands.

C functions give the package's results, and procedures with graphs and optional arguments the same bits. The README says
how to declare arguments, and graphs are made and checked.
"""

import contextlib
import ctypes
import itertools
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from programs import run

import trigraph
from trigraph import cli
from trigraph.checks import bind_arguments, check_call
from trigraph.fortran import calls, export
from trigraph.fortran.shims import SHIM_SETS, order_of
from trigraph.table import DEFINITIONS, FAMILIES, OPERATORS
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
def installed(folder):
    """Where CMake installed the sources, built without optimisation, for another place."""
    place = folder.parent / "installed"
    options = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_Fortran_FLAGS=-O0 -w", "-DCMAKE_INSTALL_PREFIX=/elsewhere"]
    run("cmake", "-S", folder, "-B", folder.parent / "build", *options)
    run("cmake", "--build", folder.parent / "build", "-j", "2")
    run("cmake", "--install", folder.parent / "build", "--prefix", place)
    return place


@pytest.fixture(scope="module")
def library(installed):
    return ctypes.CDLL(str(next(installed.rglob("libtrigraph.*"))))


def prepared(op, case, arguments, wrt=None):
    """Sizes and flags, numbers, arrays by name and results by name, as the header and the lists of README.md say."""
    checked = check_call(op, dict(bind_arguments(op, (), arguments, op.signature)), None, None, "numpy", "fortran")
    order, values, sizes, dtype = order_of(op, SHIM_SETS["fast"]), checked.values, checked.sizes, np.dtype(case.dtype)
    index = op.graph.find(op.graph.forward[0][0], values).dtype if op.graph else np.dtype(np.int64)
    presence = {n: int(values[n.removeprefix("has_")] is not None) for n in order.dims if n.startswith("has_")}
    scalars = {n: ctypes.c_int((sizes | presence)[n]) for n in order.dims}
    scalars |= {n: ctypes.c_double(values[n]) for n in order.numbers}
    arrays = {}
    for n in order.graph:
        array = op.graph.find(n, values)
        arrays[n] = np.full(1, -1, index) if array is None else array.astype(index)
    for a in (a for n in order.inputs for a in op.arguments if a.name == n):
        value = values[a.name]
        absent = value is None and (a.given_back or values.get(a.name.rpartition("gg_")[2]) is None)
        size = 1 if absent else int(np.prod(trigraph.checks.shape_of(a, sizes)))
        arrays[a.name] = np.zeros(size, index if a.index else dtype) if value is None else value
    fields = {f.name: f for f in op.returned(values, sizes) if wrt is None or f.name in wrt}
    results = {}
    for f in op.fields:
        shape = trigraph.checks.shape_of(f, sizes) if f.name in fields else (1,)
        results[f.name] = np.full(shape, -7, index if f.index else dtype)
    return scalars, arrays, results, fields


def address(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def call(library, op, case, arguments, wrt=None):
    """Call a C function."""
    scalars, arrays, results, fields = prepared(op, case, arguments, wrt)
    order = order_of(op, SHIM_SETS["fast"])
    index = next(iter(arrays.values())).dtype
    name = f"trigraph_{op.name}_{TYPES[case.dtype]}" + (f"_{TYPES[str(index)]}" if op.graph else "")
    passed = [ctypes.c_int(2), *scalars.values(), *map(address, arrays.values())]
    passed += [ctypes.c_int(n.removeprefix("want_") in fields) for n in order.wants]
    passed += map(address, results.values())
    assert getattr(library, name)(*passed) == 0
    # Negative sizes and numbers of threads below 1 are refused before any array is read.
    for place, wrong in [(0, 0), (0, -1), *((k + 1, -1) for k in range(len(order.dims)))]:
        changed = [*passed[:place], ctypes.c_int(wrong), *passed[place + 1 :]]
        assert getattr(library, name)(*changed) == export.REFUSED
    return {n: results[n] for n in fields}


def operators_of(definition, case):
    """Yield each operator of a definition with arguments: as drawn, and with each result of fwd that it accepts."""
    for op in (o for o in calls.EXPORTED.values() if o.definition is definition):
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
        for op, arguments in operators_of(definition, case):
            expected = getattr(trigraph, op.name)(**arguments)
            for name, array in call(library, op, case, arguments).items():
                reference = expected if op.single else getattr(expected, name)
                scale = max(np.abs(reference).max(initial=0), 1)
                # This build has no fused multiply-adds, so results differ by rounding; 1,000 eps separate that from any
                # mistake.
                error = np.abs(array - reference).max(initial=0) / scale
                assert error <= 1000 * np.finfo(dtype).eps, (op.name, name, variant.label)


# Procedures with graphs and optional arguments

FOLD = ", &\n"


def bridge(op):
    """Fortran source of a C function that calls the procedure for real(dp) and int64 with what is not NULL.

    The last dimension of argument number `wrong` is one too large.
    """
    order, dummies = order_of(op, SHIM_SETS["fast"]), calls.dummies(op, "f64", "i64")
    arrays = [d for d in dummies if d.shape]
    names = ["num_threads", *order.dims, *order.numbers, *(f"of_{n}" for n in order.graph)]
    names += [f"at_{d.name}" for d in arrays] + ["wrong"]
    lines = [f"function call_{op.name}({FOLD.join(names)}) result(status) bind(C)", "use iso_c_binding"]
    lines += ["use trigraph_kinds", "use trigraph_graphs", f"use trigraph_{op.family}_calls, only: {op.name}"]
    lines += ["implicit none", f"integer(c_int), value :: wrong, num_threads, {', '.join(order.dims)}"]
    lines += [f"real(c_double), value :: {n}" for n in order.numbers] + ["integer(c_int) :: status"]
    lines += [f"integer(i64) :: of_{n}({op_length(op, n)})" for n in order.graph]
    lines += [f"type(c_ptr), value :: at_{d.name}" for d in arrays]
    lines += [
        f"{d.kind}, pointer, contiguous :: {d.name}({', '.join(':' * len(d.shape))})".replace(", )", ")")
        for d in arrays
    ]
    graphs = [d for d in dummies if d.kind.startswith("type")]
    lines += [f"{d.kind}, pointer :: {d.name}" for d in graphs]
    for d in arrays:
        shape = ", ".join([*d.shape[:-1], f"{d.shape[-1]} + merge(1, 0, wrong == {dummies.index(d) + 1})"])
        lines += [
            f"nullify({d.name})",
            f"if (c_associated(at_{d.name})) call c_f_pointer(at_{d.name}, {d.name}, [{shape}])",
        ]
    for d in graphs:
        lines += [f"nullify({d.name})", *([f"if (has_{d.name} /= 0) &"] if d.optional else []), f"allocate({d.name})"]
        lines += [f"if (associated({d.name})) then"]
        sizes = op.graph.sizes if op.graph.type_name != "Segments" else ()
        lines += [f"{d.name}%{n} = {n}" for n in sizes]
        for n in order.graph:
            for graph, part in (path.split(".") for path in op.graph.paths.get(n, (f"graph.{n}",))):
                lines += [f"{d.name}%{part} = of_{n}"] if graph == d.name else []
        if not sizes:
            lines += [
                f"{d.name}%num_segments = size({d.name}%offsets) - 1",
                f"{d.name}%num_members = size({d.name}%order)",
            ]
        lines += ["end if"]
    requests = op.definition.requests
    passed = [d.name for d in dummies if d.name != "status" and d.name not in requests]
    passed = [f"{n}={n}" for n in passed] + ["status=status"]
    lines += [f"call {op.name}({FOLD.join(passed)})"] + [
        f"if (associated({d.name})) deallocate({d.name})" for d in graphs
    ]
    return "\n".join([*lines, f"end function call_{op.name}", ""])


def op_length(op, name):
    """The length of an array of the graph; 1 where it may be absent, as `prepared` passes it."""
    lengths = dict(op.graph.forward + op.graph.fast + op.graph.reverse)
    graph = op.graph.paths.get(name, ("graph.",))[0].partition(".")[0]
    return f"merge({lengths[name]}, 1, has_{graph} /= 0)" if graph in op.graph.optional else lengths[name]


@pytest.fixture(scope="module")
def bridges(installed):
    """The library of C functions that call the procedures with graphs and optional arguments."""
    source = installed.parent / "bridges.f90"
    source.write_text("\n".join(map(bridge, calls.EXPORTED.values())))
    (library,) = installed.rglob("libtrigraph.so")
    modules = installed / "include" / "trigraph"
    options = [
        "-shared",
        "-fPIC",
        "-O0",
        "-w",
        "-fcheck=all",
        "-ffree-line-length-none",
        f"-I{modules}",
        f"-J{installed.parent}",
    ]
    run("gfortran", *options, source, library, f"-Wl,-rpath,{library.parent}", "-o", source.with_suffix(".so"))
    return ctypes.CDLL(str(source.with_suffix(".so")))


def called(bridges, op, case, arguments, wrt=None, wrong=0):
    """Status and results of the procedure with optional arguments; what the arguments lack is absent."""
    scalars, arrays, results, fields = prepared(op, case, arguments, wrt)
    passed = [ctypes.c_int(2), *scalars.values(), *(address(arrays[n]) for n in order_of(op, SHIM_SETS["fast"]).graph)]
    for d in (d for d in calls.dummies(op, "f64", "i64") if d.shape):
        name = d.about.name
        if d.intent == "inout":
            passed.append(address(results[name]) if name in fields or not d.optional else None)
        else:
            passed.append(None if arguments.get(name) is None else address(arrays[name]))
    status = getattr(bridges, f"call_{op.name}")(*passed, ctypes.c_int(wrong))
    return status, {n: results[n] for n in fields}


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_optional_arguments_give_the_same_bits(library, bridges, definition):
    for variant in (v for v in variants(definition, ()) if v.kind.differenced or v.name in ("no edges", "no nodes")):
        case = build(definition, replace(variant, index=np.int64), "float64", 0)
        for op, arguments in operators_of(definition, case):
            fewer = {n: None if n.startswith(("gg_", "ggg_")) else value for n, value in arguments.items()}
            for given, wrt in ((arguments, None), (fewer, op.fields[-1].name if op.selective else None)):
                status, results = called(bridges, op, case, given, wrt and (wrt,))
                assert status == 0, (op.name, variant.label)
                expected = call(library, op, case, given, wrt and (wrt,))
                assert results.keys() == expected.keys()
                for name, array in results.items():
                    assert array.tobytes() == expected[name].tobytes(), (op.name, name, variant.label)
            for place, d in enumerate(calls.dummies(op, "f64", "i64"), 1):
                if d.shape and (d.intent == "inout" or arguments.get(d.about.name) is not None):
                    status, results = called(bridges, op, case, arguments, wrong=place)
                    absent = d.intent == "inout" and d.about.name not in results
                    assert status < 0 or absent, (op.name, d.name, status)
                    assert status == 0 or all((array == -7).all() for array in results.values())


CALLS_PROGRAM = """program calls_program
    use, intrinsic :: ieee_arithmetic, only: ieee_value, ieee_quiet_nan
    use trigraph_kinds, only: dp, i64
    use trigraph_choices
    use trigraph_graphs, only: csc_i64, make_csc
    use trigraph_gat_calls, only: mha_gat_n2n_fwd, mha_gat_n2n_bwd
    use trigraph_weighted_calls, only: agg_weighted_n2n_fwd
    implicit none
    type(csc_i64) :: graph, empty
    real(dp) :: x(8, 6), w(16), y(8, 3), z(8, 3), nan
    integer :: status(16), i
    status = 99
    x = reshape([(sin(real(i, dp)), i=1, size(x))], shape(x))
    w = reshape(x(:, 1:2), [16])
    call make_csc(graph, 3, 3, [0_i64, 1_i64, 1_i64], [0_i64, 0_i64, 2_i64], status(1))
    ! Every second column is passed; what is left out has Python's default.
    call mha_gat_n2n_fwd(graph, x(:, ::2), x(:, ::2), w, 2, y, status(2))
    call mha_gat_n2n_fwd(graph, x(:, ::2), x(:, ::2), w, 2, z, status(3), negative_slope=0.2_dp, num_threads=1, &
        & concat_heads=mha_gat_n2n_concat_heads_true, activation=mha_gat_n2n_activation_leakyrelu)
    if (any(y /= z) .or. all(y == 0)) error stop 'defaults'
    call agg_weighted_n2n_fwd(graph, x(:, ::2), z, status(4), op=agg_weighted_n2n_op_max)
    call mha_gat_n2n_fwd(empty, x(:, ::2), x(:, ::2), w, 2, z, status(5))
    call mha_gat_n2n_fwd(graph, x, x(:, ::2), w, 2, z, status(6))
    call mha_gat_n2n_fwd(graph, x(:, ::2), x(:, ::2), w(:15), 2, z, status(7))
    call mha_gat_n2n_fwd(graph, x(:, ::2), x(:, ::2), w, 3, z, status(8))
    call mha_gat_n2n_fwd(graph, x(:, ::2), x(:, ::2), w, 0, z, status(9))
    call mha_gat_n2n_fwd(graph, x(:, ::2), x(:, ::2), w, 2, z(:, :2), status(10))
    call mha_gat_n2n_fwd(graph, x(:, ::2), x(:, ::2), w, 2, z, status(11), activation=6)
    nan = ieee_value(nan, ieee_quiet_nan)
    call mha_gat_n2n_fwd(graph, x(:, ::2), x(:, ::2), w, 2, z, status(12), negative_slope=nan)
    call mha_gat_n2n_fwd(graph, x(:, ::2), x(:, ::2), w, 2, z, status(13), num_threads=0)
    call mha_gat_n2n_bwd(graph, y, x(:, ::2), x(:, ::2), w, 2, status(14), out_edge_embedding=z)
    call mha_gat_n2n_bwd(graph, y, x(:, ::2), x(:, ::2), w, 2, status(15))
    call make_csc(graph, 3, 3, [0_i64, 3_i64], [0_i64, 0_i64], status(16))
    print '(16(1x, i0))', status
end program calls_program
"""


def compiled(installed, source):
    """Compile a Fortran program with the installed library, as pkg-config says, and return what it prints."""
    path = installed.parent / "program.f90"
    path.write_text(source)
    flags = pkg_config(installed)
    run("gfortran", "-fcheck=all", "-O0", f"-J{installed.parent}", path, *flags, "-o", path.with_suffix(""))
    return run(path.with_suffix("")).stdout


def pkg_config(installed):
    if not shutil.which("pkg-config"):
        pytest.skip("pkg-config is not installed")
    (file,) = installed.rglob("trigraph.pc")
    flags = run("pkg-config", "--cflags", "--libs", "trigraph", env={**os.environ, "PKG_CONFIG_PATH": str(file.parent)})
    return [*flags.stdout.split(), f"-Wl,-rpath,{file.parent.parent}"]


def test_wrong_arguments_have_their_number_as_status(installed):
    expected = [0, 0, 0, 0, -1, -2, -4, -2, -5, -6, -10, -11, -13, -16, 0, 5]
    assert [int(word) for word in compiled(installed, CALLS_PROGRAM).split()] == expected


def test_programs_find_the_installed_library(installed, tmp_path):
    """A program in C by pkg-config, and one in Fortran by CMake's package."""
    run(
        "cc", "-Wall", "-Werror", ROOT / "examples" / "attention.c", *pkg_config(installed), "-lm", "-o", tmp_path / "a"
    )
    assert "against a difference" in run(tmp_path / "a").stdout
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(own Fortran)\nfind_package(trigraph 0.1 REQUIRED)\n"
        f"add_executable(own {ROOT / 'examples' / 'gno_program.f90'})\ntarget_link_libraries(own trigraph::trigraph)\n"
    )
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", tmp_path / "build")
    assert "gradient against a real128 difference" in run(tmp_path / "build" / "own").stdout


@pytest.mark.slow
def test_a_project_of_cmake_builds_the_sources_in_a_folder_of_its_own(tmp_path):
    """With the lines of docs/fortran.md."""
    (lines,) = re.findall(r"```cmake\n(.*?)```", (ROOT / "docs" / "fortran.md").read_text(), re.DOTALL)
    (tmp_path / "CMakeLists.txt").write_text(lines)
    done = CliRunner().invoke(cli.main, ["fortran", str(tmp_path / "trigraph"), "--family", "gno"])
    assert done.exit_code == 0, done.output
    shutil.copy(ROOT / "examples" / "gno_program.f90", tmp_path / "program.f90")
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build")
    run("cmake", "--build", tmp_path / "build", "-j", "2")
    assert "gradient against a real128 difference" in run(tmp_path / "build" / "program").stdout


def test_lists_of_the_readme_mark_what_may_be_absent(folder):
    text = (folder / "README.md").read_text()
    for op in calls.EXPORTED.values():
        lines = text.split(f"### `{op.name}`\n")[1].split("\n### ")[0].splitlines()
        absent = {line.split("`")[1] for line in lines if re.match(r"- `\w+`: [^;]*?, optional", line)}
        assert absent == {d.name for d in calls.dummies(op, "f64", "i64") if d.optional}, op.name


QUICK = "dimenet"  # which needs most kinds of sources


@pytest.mark.parametrize("family", [pytest.param(f, marks=[] if f == QUICK else pytest.mark.slow) for f in FAMILIES])
def test_commands_compile_all_that_a_family_needs(tmp_path, family):
    """Each command, in a folder with the sources of the family alone."""
    done = CliRunner().invoke(cli.main, ["fortran", str(tmp_path), "--family", family])
    assert done.exit_code == 0, done.output
    texts = [(tmp_path / "README.md").read_text(), (ROOT / "docs" / "fortran.md").read_text()]
    texts = [text.replace(" \\\n   ", "") for text in texts]
    commands, in_docs = (dict(re.findall(rf"^# {family}: (.*)\n(.*)$", text, re.MULTILINE)) for text in texts)
    assert commands == in_docs
    commands.pop("trigraph_athena", None)  # test_athena.py
    assert len(commands) == 3
    op = next(op for op in OPERATORS.values() if op.family == family)
    for title, command in commands.items():
        modules = f"use trigraph_graphs\nuse trigraph_choices\nuse {title.partition(',')[0]}, only: {op.name}\n"
        (tmp_path / "program.f90").write_text(f"program p\n{modules}end program p\n")
        function = f"trigraph_{op.name}_f64" + "_i32" * (op.graph is not None)
        (tmp_path / "program.c").write_text(f'#include "trigraph.h"\nint main(void) {{ return {function} == 0; }}\n')
        run(*command.replace("-O3", "-O0 -w").split(), cwd=tmp_path)
        run(tmp_path / "program")


@pytest.mark.skipif(shutil.which("fpm") is None, reason="needs fpm")
def test_fpm_builds_a_family(tmp_path):
    assert CliRunner().invoke(cli.main, ["fortran", str(tmp_path), "--family", "gno"]).exit_code == 0
    run("fpm", "build", "--profile", "debug", cwd=tmp_path)


def test_header_and_lists_name_every_function(folder):
    header, readme = (folder / "include" / "trigraph.h").read_text(), (folder / "README.md").read_text()
    for op in calls.EXPORTED.values():
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
    names = "src/choices.f90", "include/trigraph.h", "README.md"
    text, header, readme = ((folder / name).read_text() for name in names)
    expected = {"mha_gat_n2n_activation_leakyrelu": 2, "agg_weighted_n2n_op_max": 3, "agg_edge_to_edge_exclude_none": 0}
    for name, value in expected.items():
        assert f":: {name} = {value}\n" in text
        assert f" TRIGRAPH_{name.upper()} = {value},\n" in header
        assert f"- `{name}` {value}\n" in readme


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
    assert {name.removesuffix("_fast") for name in lists} == set(calls.EXPORTED)
    kinds = {"integer": "integer(i64)", "real": "real(dp)"}
    program = []
    for name, arguments in lists.items():
        op = calls.EXPORTED[name.removesuffix("_fast")]
        fast, reference = [], []
        for argument, marks, kind, shape, other, other_shape, scalar in arguments:
            declared = kinds[kind] if kind else scalar.split(",")[0]
            if "***" not in marks:
                fast.append((argument, declared, shape))
            if ("***" in marks or "*" not in marks) and argument != "num_threads":
                reference.append((other or argument, declared, other_shape or shape))
        program.append(caller(f"{op.name}_fast", f"trigraph_{op.family}_fast", fast))
        if op.order < 3:
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


# Graphs: arrays that are made, and checks of them

EDGE_ARRAYS = ("dst_offsets", "dst_edge_index", "reverse_edge", "src_offsets", "reverse_start", "reverse_stop")


def edge_arrays(graph, reverse=True):
    """Arguments of check_edge_graph."""
    names = ("src", "dst", *EDGE_ARRAYS)
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
    assert sorted(status.values()) == list(range(1, 10))
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


def made(library, name, index, numbers, given, lengths):
    """Return the status of a function that makes arrays of a graph, and these; it writes nothing beyond their ends."""
    dtype = {"i32": np.int32, "i64": np.int64}[index]
    arrays = [np.append(a, -99).astype(dtype) for a in given] + [np.full(n + 1, -7, dtype) for n in lengths]
    status = getattr(library, f"trigraph_build_{name}_{index}")(*map(ctypes.c_int, numbers), *map(address, arrays))
    results = arrays[len(given) :]
    assert all(a[-1] == -7 for a in results)
    return status, [a[:-1] for a in results]


@pytest.mark.parametrize("index", ["i32", "i64"])
def test_arrays_of_graphs_are_pythons(library, index):
    """Random graphs, some without edges or nodes, most with isolated nodes, and periodic ones with parallel edges."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        num_src, num_dst, num_edges = (int(n) for n in rng.integers(0, (7, 6, 30)))
        num_edges *= num_src * num_dst > 0
        src, dst = (rng.integers(0, max(n, 1), num_edges) for n in (num_src, num_dst))
        graph, members = trigraph.CSC.from_coo(src, dst, num_src, num_dst), trigraph.Segments(dst, num_dst)
        sizes = (num_src, num_dst, num_edges)
        status, arrays = made(library, "csc", index, sizes, (src, dst), (num_dst + 1, num_edges, num_edges))
        rows = np.sort(rng.integers(0, 40, num_edges))
        shared = trigraph.CSC(graph.offsets, graph.indices, num_src, rows, 40)
        given, lengths = (graph.offsets, graph.indices, rows), (num_edges, num_src + 1, num_edges, 41, num_edges)
        of_orders, orders = made(library, "csc_orders", index, (*sizes, 40), given, lengths)
        of_members, parts = made(library, "segments", index, sizes[:0:-1], (dst,), (num_dst + 1, num_edges))
        pairs = np.sort(rng.permutation(num_src**2)[:num_edges])
        pairs = np.divmod(pairs, num_src) if num_src else (pairs, pairs)
        edges, shifts = [trigraph.EdgeGraph(*pairs, num_src)], [np.zeros((0, 3))]
        periodic = trigraph.EdgeGraph.from_positions(
            rng.random((3, 3)) + np.arange(3)[:, None], 2.5, 3 * np.eye(3), True
        )
        for graph_of_edges, shift in ((edges[0], shifts[0]), (periodic.graph, periodic.shifts)):
            n, e = graph_of_edges.num_nodes, graph_of_edges.num_edges
            given = (graph_of_edges.src, graph_of_edges.dst, shift)
            numbers = (n, e, int(shift.size > 0))
            of_edges, found = made(library, "edge_graph", index, numbers, given, (n + 1, e, e, n + 1, e, e))
            assert of_edges == 0
            for name, array in zip(EDGE_ARRAYS, found, strict=True):
                assert array.tolist() == getattr(graph_of_edges, name).tolist(), name
        assert (status, of_orders, of_members) == (0, 0, 0)
        expected = (graph.offsets, graph.indices, graph.edge_ids, *shared.prepare(), members.offsets, members.order)
        for array, right in zip((*arrays, *orders, *parts), expected, strict=True):
            assert array.tolist() == right.tolist()


def test_lists_that_make_no_graph_are_refused(library, folder):
    status = found_in_header(folder)
    two = np.array([0, 1])
    for expected, name, numbers, given in (
        ("size", "csc", (2, 2, -1), (two, two)),
        ("range", "csc", (1, 2, 2), (two, two)),
        ("range", "csc", (2, 1, 2), (two, two)),
        ("range", "csc", (2, 2, 2), (two - 1, two)),
        ("size", "csc_orders", (2, -1, 2, 2), (two, two, two)),
        ("last", "csc_orders", (2, 1, 2, 2), (two, two, two)),
        ("range", "segments", (2, 1), (two,)),
        ("size", "segments", (2, -1), (two,)),
        ("order", "edge_graph", (2, 2, 0), (1 - two, two, two)),
        ("range", "edge_graph", (2, 2, 0), (two, two + 1, two)),
        ("size", "edge_graph", (2, 2, 2), (two, two, two)),
        ("parallel", "edge_graph", (2, 3, 0), ([0, 1, 1], [1, 0, 0], two)),
        ("parallel", "edge_graph", (2, 3, 1), ([0, 1, 1], [1, 0, 0], np.zeros(9))),
        ("parallel", "edge_graph", (1, 1, 1), ([0], [0], np.zeros(3))),
    ):
        found, _ = made(
            library, name, "i64", numbers, given, [4] * {"csc": 3, "csc_orders": 5, "segments": 2}.get(name, 6)
        )
        assert found == status[expected], (expected, name, numbers)


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
    integer(i64) :: src(5) = [2_i64, 0_i64, 1_i64, 2_i64, 2_i64], dst(5) = [1_i64, 0_i64, 2_i64, 0_i64, 0_i64]
    integer(i64) :: shifts(3, 5) = 0
    integer(i64), allocatable :: permutation(:)
    type(csc_i64) :: csc, wrong
    type(edge_graph_i64) :: edges
    type(segments_i64) :: members
    integer :: status(8), made(9)
    integer, parameter :: first = 0
    logical :: kept
    src = src + first
    dst = dst + first
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
    shifts(:, 2) = 1  ! of a node to itself
    shifts(:, 4) = [1_i64, 2_i64, 3_i64]
    call make_csc(csc, 3, 3, src, dst, made(1), first + [4_i64, 3_i64, 2_i64, 1_i64, 0_i64], 6, first)
    call make_csc(wrong, huge(1), 3, src, dst, made(2), first=first)
    call make_csc(wrong, 3, 3, src, dst(:4), made(3), first=first)
    call make_csc(wrong, 2, 3, src, dst, made(4), first=first)
    call make_edge_graph(edges, 3, src, dst, made(5), shifts, first=first)
    call make_edge_graph(edges, 3, first + [0_i64, 1_i64], first + [1_i64, 0_i64], made(6), first=first)
    call make_edge_graph(edges, 3, first + [0_i64, 1_i64, 1_i64], first + [1_i64, 0_i64, 0_i64], made(7), first=first)
    kept = allocated(wrong%offsets) .or. allocated(edges%dst_offsets)
    call make_edge_graph(edges, 3, src, dst, made(8), shifts, permutation, first)
    call make_segments(members, 2, dst, made(9), first)
    print '(9(1x, i0), 1x, l1)', made, kept .or. allocated(members%offsets)
    call make_segments(members, 3, dst, made(9), first)
    print '(*(1x, i0))', csc%offsets
    print '(*(1x, i0))', csc%indices
    print '(*(1x, i0))', csc%edge_ids
    print '(*(1x, i0))', csc%destinations
    print '(*(1x, i0))', csc%src_offsets
    print '(*(1x, i0))', csc%src_positions
    print '(*(1x, i0))', csc%row_offsets
    print '(*(1x, i0))', csc%row_positions
    print '(*(1x, i0))', edges%src
    print '(*(1x, i0))', edges%dst
    print '(*(1x, i0))', edges%dst_offsets
    print '(*(1x, i0))', edges%dst_edge_index
    print '(*(1x, i0))', edges%reverse_edge
    print '(*(1x, i0))', edges%src_offsets
    print '(*(1x, i0))', edges%reverse_start
    print '(*(1x, i0))', edges%reverse_stop
    print '(*(1x, i0))', permutation
    print '(*(1x, i0))', members%index
    print '(*(1x, i0))', members%offsets
    print '(*(1x, i0))', members%order
end program graphs
"""


@pytest.mark.parametrize("first", [0, 1])
def test_graphs_are_made_and_checked_from_fortran(installed, first):
    program = GRAPH_PROGRAM.replace(":: first = 0", f":: first = {first}")
    statuses, named, of_made, *lines = (line.split() for line in compiled(installed, program).splitlines())
    of_first, of_range, _ = named
    assert statuses == ["0", "0", of_first, of_range, "3", "0", "0", "0"]
    assert of_made == ["0", "1", "1", "5", "6", "0", "8", "0", "5", "F"]
    src, dst, shifts = np.array([2, 0, 1, 2, 2]), np.array([1, 0, 2, 0, 0]), np.array([[0, 1, 0, 0, 0]] * 3).T
    shifts[3] = 1, 2, 3
    graph = trigraph.CSC.from_coo(src, dst, 3, 3, np.array([4, 3, 2, 1, 0]), 6)
    edges, permutation = trigraph.EdgeGraph.sorted(src, dst, 3, shifts)
    members = trigraph.Segments(dst, 3)
    expected = [graph.offsets, graph.indices, graph.edge_ids, *graph.prepare(), edges.src, edges.dst]
    expected += [getattr(edges, n) for n in EDGE_ARRAYS] + [
        permutation + first,
        members.index,
        members.offsets,
        members.order,
    ]
    assert [list(map(int, line)) for line in lines] == [array.tolist() for array in expected]
