"""Tests of the C interface and the Fortran modules: results are bitwise identical to the Python package's.

The tests cover Fortran procedures with graphs and optional arguments, statuses for invalid arguments, and the library
built from sources that `trigraph fortran` writes.
"""

import ctypes
import itertools
import os
import re
import resource
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from library_programs import array_pointer, compile_and_run_fortran, read_trigraph_config
from mutated_sources import assert_tests_detect_mutation, write_mutated_sources
from programs import run_command

import trigraph
from trigraph import cli
from trigraph.backends import LIBRARY_BY_BACKEND
from trigraph.checks import bind_arguments, check_arguments
from trigraph.fortran import calls, interface, levels
from trigraph.fortran.shims import SHIM_SETS, order_arguments
from trigraph.table import DEFINITIONS, OPERATORS, evaluate_expression
from trigraph.verification.cases import build_case, list_variants

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(trigraph.__file__).parent
TYPES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}
C_TYPES = {"f32": "float", "f64": "double", "i32": "int32_t", "i64": "int64_t"}
REFUSED, WRONG_NUMBER, WRONG_LOCATION, WRONG_GRAPH, NO_LEVEL = range(1, 6)


def prepare_c_arguments(op, case, arguments, wrt=None):
    """Return the scalars, arrays and results of a call by name, in header order, and the fields to compute."""
    bound = bind_arguments(op, (), arguments, op.signature)
    checked = check_arguments(op, bound, None, None, LIBRARY_BY_BACKEND["fortran"])
    order = order_arguments(op, SHIM_SETS["fast"])
    values, sizes, dtype = checked.values, checked.sizes, np.dtype(case.dtype)
    index = (
        op.graph_kind.find_attribute(op.graph_kind.forward[0][0], values).dtype if op.graph_kind else np.dtype(np.int64)
    )
    presence = {n: int(values[n.removeprefix("has_")] is not None) for n in order.dims if n.startswith("has_")}
    scalars = {n: ctypes.c_int((sizes | presence)[n]) for n in order.dims}
    scalars |= {n: ctypes.c_double(values[n]) for n in order.numbers}
    arrays = {}
    for n in order.graph:
        array = op.graph_kind.find_attribute(n, values)
        arrays[n] = np.full(1, -1, index) if array is None else array.astype(index)
    for a in (a for n in order.inputs for a in op.arguments if a.name == n):
        value = values[a.name]
        absent = value is None and (a.given_back or values.get(a.name.rpartition("gg_")[2]) is None)
        size = 1 if absent else int(np.prod(trigraph.checks.evaluate_shape(a, sizes)))
        arrays[a.name] = np.zeros(size, index if a.index else dtype) if value is None else value
    fields = {f.name: f for f in op.list_returned_fields(values, sizes) if wrt is None or f.name in wrt}
    results = {}
    for f in op.fields:
        shape = trigraph.checks.evaluate_shape(f, sizes) if f.name in fields else (1,)
        results[f.name] = np.full(shape, -7, index if f.index else dtype)
    return scalars, arrays, results, fields


def c_function_name(op, case, arrays):
    """Return the name of the C function for a case's dtypes."""
    index = f"_{TYPES[str(next(iter(arrays.values())).dtype)]}" if op.graph_kind else ""
    return f"trigraph_{op.name}_{TYPES[case.dtype]}{index}"


def check_and_call_c_function(library, op, case, arguments, wrt=None):
    """Call a C function, first with invalid scalars and indices, then correctly; return the results."""
    scalars, arrays, results, fields = prepare_c_arguments(op, case, arguments, wrt)
    order = order_arguments(op, SHIM_SETS["fast"])
    passed = [ctypes.c_int(2), *scalars.values(), *map(array_pointer, arrays.values())]
    passed += [ctypes.c_int(n.removeprefix("want_") in fields) for n in order.wants]
    passed += map(array_pointer, results.values())
    function = getattr(library, c_function_name(op, case, arrays))
    # Scalars that are out of range are refused before any array is read.
    choices = {a.name: len(a.choices) for a in op.attributes if a.choices}
    for place, name in enumerate(("", *order.dims)):
        for wrong in (-1, choices.get(name, -1)):
            changed = [*passed[:place], ctypes.c_int(wrong), *passed[place + 1 :]]
            assert function(*changed) == WRONG_NUMBER
    for place in range(len(order.dims) + 1, len(scalars) + 1):
        assert function(*passed[:place], ctypes.c_double(np.nan), *passed[place + 1 :]) == WRONG_NUMBER
    lengths = dict((*op.graph_kind.forward, *op.graph_kind.fast, *op.graph_kind.reverse)) if op.graph_kind else {}
    for place, name in enumerate(order.graph, len(scalars) + 1):
        stop = evaluate_expression(
            interface.UPPER_BOUNDS.get(name, lengths[name]), {n: size.value for n, size in scalars.items()}
        )
        array, absent = arrays[name], op.graph_kind.find_attribute(name, arguments) is None
        for wrong in () if absent or not array.size or name == "reverse_edge" else (-1, stop):
            for at in (0, -1):
                changed = array.copy()
                changed[at] = wrong
                if any(a.size for a in arrays.values()):
                    with_wrong = [*passed[:place], array_pointer(changed), *passed[place + 1 :]]
                    assert function(*with_wrong) == WRONG_GRAPH, (op.name, name)
    assert all((a == -7).all() for a in results.values())
    assert function(*passed) == 0
    return {n: results[n] for n in fields}


def yield_operators_with_arguments(definition, case):
    """Yield each operator of a definition with its arguments, without and with each result of fwd that it accepts."""
    for op in (o for o in calls.EXPORTED.values() if o.definition is definition):
        arguments = case.arguments(op)
        yield op, arguments
        fwd = getattr(trigraph, f"{definition.name}_fwd")
        for name in (a.name for a in op.arguments if a.given_back):
            back = getattr(fwd(**case.arguments(OPERATORS[fwd.__name__])), name)
            yield op, arguments | {name: back}


def yield_cases(definition, dtype, index):
    """Yield cases of a definition, some of them without edges or nodes."""
    for variant in list_variants(definition, ()):
        if variant.kind.differenced or variant.name in ("no edges", "no nodes"):
            yield build_case(definition, replace(variant, index=index), dtype, 0)


def yield_cases_of_all_dtypes(definition):
    """Yield cases of a definition for all dtypes of numbers and indices."""
    for dtype, index in itertools.product(("float32", "float64"), (np.int32, np.int64)):
        yield from yield_cases(definition, dtype, index)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_c_functions_equal_package_bitwise(fortran_library, definition):
    for case in yield_cases_of_all_dtypes(definition):
        for op, arguments in yield_operators_with_arguments(definition, case):
            expected = getattr(trigraph.fortran, op.name)(**arguments)
            for name, array in check_and_call_c_function(fortran_library, op, case, arguments).items():
                reference = expected if op.returns_array else getattr(expected, name)
                assert array.tobytes() == reference.tobytes(), (op.name, name, case.dtype)


def test_library_needs_no_python_symbols():
    for path in [*(PACKAGE / "fortran").glob("libtrigraph*.so")]:
        assert not re.search(r"\bU _?Py", run_command("nm", "-D", path).stdout), path


def test_c_functions_set_threads_and_levels(fortran_library, tmp_path):
    assert fortran_library.trigraph_set_num_threads(0) == WRONG_NUMBER
    assert fortran_library.trigraph_set_num_threads(10**6) == WRONG_NUMBER
    before = fortran_library.trigraph_get_num_threads()
    assert fortran_library.trigraph_set_num_threads(2) == 0
    assert fortran_library.trigraph_get_num_threads() == 2
    child = os.fork()
    if child == 0:
        os._exit(fortran_library.trigraph_get_num_threads() + 10 * fortran_library.trigraph_set_num_threads(2))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1 + 10 * REFUSED
    assert fortran_library.trigraph_set_num_threads(before) == 0
    fortran_library.trigraph_get_cpu_level.restype = fortran_library.trigraph_status_text.restype = ctypes.c_char_p
    assert fortran_library.trigraph_set_cpu_level(b"v9") == NO_LEVEL
    for level in levels.list_runnable_levels():
        assert fortran_library.trigraph_set_cpu_level(level.encode()) == 0
        assert fortran_library.trigraph_get_cpu_level().decode() == level
    texts = {fortran_library.trigraph_status_text(status) for status in range(-1, 7)}
    assert len(texts) == 7
    source = tmp_path / "level.c"
    source.write_text(
        '#include <stdio.h>\n#include "trigraph.h"\nint main(void) { float x = 0;\n'
        "const char *level = trigraph_get_cpu_level();\n"
        'printf("%s %d %d", level ? level : "none", trigraph_get_num_threads(), '
        "trigraph_gno_kernel_fwd_f32(0, 0, 1, 1, 1, 1, &x, &x, &x)); }\n"
    )
    run_command("cc", source, *read_trigraph_config("--include", "--libs"), "-o", tmp_path / "level")
    for level, expected in ((levels.list_runnable_levels()[0], "0"), ("v9", f"{NO_LEVEL}")):
        environment = {"TRIGRAPH_CPU_LEVEL": level, "OMP_NUM_THREADS": "3"}
        name = level if expected == "0" else "none"
        assert run_command(tmp_path / "level", env=environment).stdout == f"{name} 3 {expected}"


def test_refused_memory_has_a_status(fortran_library):
    """If the system refuses 32 MB of workspace, a call returns a status and leaves the results unchanged."""
    f_in = hidden = 2000
    numbers = (f_in, hidden * (2 + f_in) + f_in, 1)
    features, params, coords = map(np.ones, numbers)
    offsets, zero, message = np.array([0, 1], np.int32), np.zeros(1, np.int32), np.array([-7.0])
    op = OPERATORS["gno_message_fwd"]
    order = order_arguments(op, SHIM_SETS["fast"])
    sizes = dict.fromkeys(order.dims, 1) | {"f_in": f_in, "hidden": hidden}
    of_graph = [offsets if n.endswith("offsets") else zero for n in order.graph]
    given = {"features": features, "params": params, "coords": coords}
    arrays = [*of_graph, *(given[n] for n in order.inputs), message]
    child = os.fork()
    if child == 0:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 22), used + (1 << 22)))
        scalars = [ctypes.c_int(1), *(ctypes.c_int(sizes[n]) for n in order.dims)]
        status = fortran_library.trigraph_gno_message_fwd_f64_i32(*scalars, *map(array_pointer, arrays))
        os._exit(status if message[0] == -7.0 else 99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == REFUSED


def test_wrong_locations_of_extrema_are_refused(fortran_library):
    definition = next(d for d in DEFINITIONS if d.name == "agg_weighted_n2n")
    op, seen = OPERATORS["agg_weighted_n2n_bwd"], 0
    for case in yield_cases_of_all_dtypes(definition):
        for _, arguments in (o for o in yield_operators_with_arguments(definition, case) if o[0] is op):
            scalars, arrays, results, _ = prepare_c_arguments(op, case, arguments)
            for name in (a.name for a in op.index_arguments if arguments.get(a.name) is not None):
                offsets = arrays["offsets"]
                row = int(np.flatnonzero(np.diff(offsets)).max(initial=0))  # index of the last row with in-edges
                for wrong in (-2, offsets[row + 1]) if arrays[name].size else ():
                    changed = arrays | {name: arrays[name].copy()}
                    changed[name][row, -1] = wrong
                    passed = [ctypes.c_int(1), *scalars.values(), *map(array_pointer, changed.values())]
                    passed += [ctypes.c_int(1) for _ in op.fields] + [*map(array_pointer, results.values())]
                    assert getattr(fortran_library, c_function_name(op, case, arrays))(*passed) == WRONG_LOCATION
                    assert all((a == -7).all() for a in results.values())
                    seen += 1
    assert seen > 4


# Mutations of interface.c and of the output of interface.py: old text, new text, and tests that must fail.
MUTATIONS = {
    "": ("status = -1", "status = -1", "bits or locations"),
    "a status is ignored": ("return status > 0 ? TRIGRAPH_REFUSED : status;", "return 0 * status;", "status"),
    "an index may be the bound": ("(a[i] >= stop)", "(a[i] > stop)", "bits"),
    "an index may be negative": ("(a[i] < least) | ", "", "bits"),
    "offsets need not end at the last": (" || offsets[number] != last", "", "bits"),
    "locations of other columns": ("(i + 1) * (int64_t)dim", "i * (int64_t)dim + 1", "locations"),
    "a location may be the next node's": ("location[k] < offsets[i + 1]", "location[k] <= offsets[i + 1]", "locations"),
    "locations are not checked": ("&& !locations_", "&& 0 * !locations_", "locations"),
    "a choice may be one more": ("op < 0 || op > 3", "op < 0 || op > 4", "bits"),
    "a field is not written": (
        "want_edge_weight ? (void *)out_edge_weight",
        "!want_edge_weight ? (void *)out_edge_weight",
        "bits",
    ),
}
TEST_SELECTIONS = {
    "bits": "c_functions and agg_weighted_n2n",
    "locations": "wrong_locations",
    "bits or locations": "c_functions and agg_weighted_n2n or wrong_locations or has_a_status",
    "status": "has_a_status",
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", MUTATIONS)
def test_mutations_of_c_interface_are_found(tmp_path, wrong):
    package = levels.LIBRARY.parent
    for path in package.glob("libtrigraph_v*.so"):
        (tmp_path / path.name).symlink_to(path)
    run_command(sys.executable, package / "interface.py", "write", PACKAGE / "include" / "graphs.f90", tmp_path)
    run_command(sys.executable, package / "shims.py", "cases", tmp_path / "xla_cases.inc")
    *mutation, test = MUTATIONS[wrong]
    write_mutated_sources([package / "interface.c", tmp_path / "interface.inc"], tmp_path, mutation)
    library, sources = tmp_path / "libtrigraph.so", (tmp_path / "interface.c", package / "cpu_level.c")
    run_command("cc", "-O0", "-shared", "-fPIC", f"-I{tmp_path}", *sources, "-o", library, "-ldl", "-lpthread")
    use_library = 'import os; os.environ["WRONG_LIBRARY"] = sys.argv[1]'
    assert_tests_detect_mutation(library, use_library, __file__, TEST_SELECTIONS[test], bool(wrong))


# Procedures with graphs and optional arguments

CONTINUATION = ", &\n"


def make_fortran_bridge_code(op):
    """Return Fortran code of a C function that calls a procedure (real(dp), int64) with the non-NULL arguments.

    The last dimension of argument number `wrong` is one too large.
    """
    order, dummies = order_arguments(op, SHIM_SETS["fast"]), calls.list_dummy_arguments(op, "f64", "i64")
    arrays = [d for d in dummies if d.shape]
    names = ["num_threads", *order.dims, *order.numbers, *(f"of_{n}" for n in order.graph)]
    names += [f"at_{d.name}" for d in arrays] + ["wrong"]
    lines = [f"function call_{op.name}({CONTINUATION.join(names)}) result(status) bind(C)", "use iso_c_binding"]
    lines += ["use trigraph_kinds", "use trigraph_graphs", f"use trigraph_{op.family}_calls, only: {op.name}"]
    lines += ["implicit none", f"integer(c_int), value :: wrong, num_threads, {', '.join(order.dims)}"]
    lines += [f"real(c_double), value :: {n}" for n in order.numbers] + ["integer(c_int) :: status"]
    lines += [f"integer(i64) :: of_{n}({format_graph_array_length(op, n)})" for n in order.graph]
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
        sizes = op.graph_kind.sizes if op.graph_kind.type_name != "Segments" else ()
        lines += [f"{d.name}%{n} = {n}" for n in sizes]
        for n in order.graph:
            for graph, part in (path.split(".") for path in op.graph_kind.paths.get(n, (f"graph.{n}",))):
                lines += [f"{d.name}%{part} = of_{n}"] if graph == d.name else []
        if not sizes:
            lines += [
                f"{d.name}%num_segments = size({d.name}%offsets) - 1",
                f"{d.name}%num_members = size({d.name}%order)",
            ]
        lines += ["end if"]
    requests = op.definition.request_names
    passed = [d.name for d in dummies if d.name != "status" and d.name not in requests]
    passed = [f"{n}={n}" for n in passed] + ["status=status"]
    lines += [f"call {op.name}({CONTINUATION.join(passed)})"] + [
        f"if (associated({d.name})) deallocate({d.name})" for d in graphs
    ]
    return "\n".join([*lines, f"end function call_{op.name}", ""])


def format_graph_array_length(op, name):
    """Return a Fortran expression for the length of a graph array, which is 1 if an optional graph is absent."""
    lengths = dict(op.graph_kind.forward + op.graph_kind.fast + op.graph_kind.reverse)
    graph = op.graph_kind.paths.get(name, ("graph.",))[0].partition(".")[0]
    return f"merge({lengths[name]}, 1, has_{graph} /= 0)" if graph in op.graph_kind.optional_names else lengths[name]


@pytest.fixture(scope="module")
def bridge_library(tmp_path_factory):
    """Build the functions of `make_fortran_bridge_code`; return their library."""
    source = tmp_path_factory.mktemp("bridges") / "bridges.f90"
    source.write_text("\n".join(map(make_fortran_bridge_code, calls.EXPORTED.values())))
    flags = ["-shared", "-fPIC", "-O0", "-w", "-fcheck=all", "-ffree-line-length-none", f"-J{source.parent}"]
    run_command(
        "gfortran", *flags, source, *read_trigraph_config("--include", "--libs"), "-o", source.with_suffix(".so")
    )
    return ctypes.CDLL(str(source.with_suffix(".so")))


def call_fortran_procedure(bridges, op, case, arguments, wrt=None, wrong=0):
    """Call a procedure without the arguments that are None; return its status and results."""
    scalars, arrays, results, fields = prepare_c_arguments(op, case, arguments, wrt)
    graph = order_arguments(op, SHIM_SETS["fast"]).graph
    passed = [ctypes.c_int(2), *scalars.values(), *(array_pointer(arrays[n]) for n in graph)]
    for d in (d for d in calls.list_dummy_arguments(op, "f64", "i64") if d.shape):
        name = d.table_entry.name
        if d.intent == "inout":
            passed.append(array_pointer(results[name]) if name in fields or not d.optional else None)
        else:
            passed.append(None if arguments.get(name) is None else array_pointer(arrays[name]))
    status = getattr(bridges, f"call_{op.name}")(*passed, ctypes.c_int(wrong))
    return status, {n: results[n] for n in fields}


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_fortran_procedures_equal_c_interface_bitwise(fortran_library, bridge_library, definition):
    for case in yield_cases(definition, "float64", np.int64):
        for op, arguments in yield_operators_with_arguments(definition, case):
            without_cotangents = {n: None if n.startswith(("gg_", "ggg_")) else value for n, value in arguments.items()}
            for given, wrt in ((arguments, None), (without_cotangents, op.fields[-1].name if op.accepts_wrt else None)):
                status, results = call_fortran_procedure(bridge_library, op, case, given, wrt and (wrt,))
                assert status == 0, (op.name, case.name)
                expected = check_and_call_c_function(fortran_library, op, case, given, wrt and (wrt,))
                assert results.keys() == expected.keys()
                for name, array in results.items():
                    assert array.tobytes() == expected[name].tobytes(), (op.name, name, case.name)
            for place, d in enumerate(calls.list_dummy_arguments(op, "f64", "i64"), 1):
                if d.shape and (d.intent == "inout" or arguments.get(d.table_entry.name) is not None):
                    status, results = call_fortran_procedure(bridge_library, op, case, arguments, wrong=place)
                    absent = d.intent == "inout" and d.table_entry.name not in results
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


def test_wrong_arguments_have_their_number_as_status(tmp_path):
    expected = [0, 0, 0, 0, -1, -2, -4, -2, -5, -6, -10, -11, -13, -16, 0, 5]
    assert [int(word) for word in compile_and_run_fortran(tmp_path, CALLS_PROGRAM).split()] == expected


def test_choice_constants_are_positions_of_choices():
    text, header = ((PACKAGE / "include" / name).read_text() for name in ("choices.f90", "trigraph.h"))
    expected = {"mha_gat_n2n_activation_leakyrelu": 2, "agg_weighted_n2n_op_max": 3, "agg_edge_to_edge_exclude_none": 0}
    for name, value in expected.items():
        assert f":: {name} = {value}\n" in text
        assert f" TRIGRAPH_{name.upper()} = {value},\n" in header


def make_c_pointer_declaration(op, real, index):
    """Return C code that initialises a pointer with a function; its type is that of the arguments in the table."""
    order, number, whole = order_arguments(op, SHIM_SETS["fast"]), C_TYPES[real], C_TYPES[index or "i64"]
    numbers = {n: f"{whole if n in order.integers else number} *" for n in (*order.inputs, *order.outputs)}
    kinds = ["int" for _ in (*order.threads, *order.dims)] + ["double" for _ in order.numbers]
    kinds += [f"const {whole} *" for _ in order.graph] + [f"const {numbers[n]}" for n in order.inputs]
    kinds += ["int" for _ in order.wants] + [numbers[n] for n in order.outputs]
    name = calls.name_c_function(op, real, index)
    return f"int (*of_{name})({', '.join(kinds)}) = {name};\n"


def test_the_header_declares_the_functions_of_the_table(tmp_path):
    pointers = [
        make_c_pointer_declaration(op, *one) for op in calls.EXPORTED.values() for one in calls.list_kind_pairs(op)
    ]
    for end, compiler in (("c", "cc"), ("cpp", "c++")):
        (tmp_path / f"a.{end}").write_text('#include "trigraph.h"\n' + "".join(pointers))
        flags = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", *read_trigraph_config("--include")]
        run_command(compiler, *flags, tmp_path / f"a.{end}")


# Sources for a build without Python


@pytest.mark.slow
def test_cmake_builds_and_installs_the_sources(tmp_path):
    """CMake builds the sources as shown in docs/fortran.md; C programs find the library with pkg-config."""
    folder, place = tmp_path / "trigraph", tmp_path / "installed"
    done = CliRunner().invoke(cli.main, ["fortran", str(folder)])
    assert done.exit_code == 0, done.output
    (lines,) = re.findall(r"```cmake\n(.*?)```", (ROOT / "docs" / "fortran.md").read_text(), re.DOTALL)
    (tmp_path / "CMakeLists.txt").write_text(lines)
    shutil.copy(ROOT / "examples" / "gno_program.f90", tmp_path / "program.f90")
    quick = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_Fortran_FLAGS=-O0 -w", f"-DCMAKE_INSTALL_PREFIX={place}"]
    run_command("cmake", "-S", tmp_path, "-B", tmp_path / "build", *quick)
    run_command("cmake", "--build", tmp_path / "build", "-j", "2")
    assert "gradient against a real128 difference" in run_command(tmp_path / "build" / "program").stdout
    run_command("cmake", "--install", tmp_path / "build")
    (file,) = place.rglob("trigraph.pc")
    variables = {**os.environ, "PKG_CONFIG_PATH": str(file.parent)}
    flags = run_command("pkg-config", "--cflags", "--libs", "trigraph", env=variables)
    flags = [*flags.stdout.split(), f"-Wl,-rpath,{file.parent.parent}", "-lm"]
    run_command("cc", "-Wall", "-Werror", ROOT / "examples" / "attention.c", *flags, "-o", tmp_path / "a")
    assert "against a difference" in run_command(tmp_path / "a").stdout


@pytest.mark.skipif(shutil.which("fpm") is None, reason="needs fpm")
def test_fpm_builds_the_sources(tmp_path):
    assert CliRunner().invoke(cli.main, ["fortran", str(tmp_path)]).exit_code == 0
    run_command("fpm", "build", "--profile", "debug", cwd=tmp_path)


def test_fortran_export_refuses_folder_with_files(tmp_path, monkeypatch):
    monkeypatch.setattr("trigraph.fortran.export.generate_library_files", lambda vector_bytes: {"src/a.f90": "a"})
    (tmp_path / "mine").write_text("mine")
    done = CliRunner().invoke(cli.main, ["fortran", str(tmp_path)])
    assert (done.exit_code, [p.name for p in tmp_path.iterdir()]) == (1, ["mine"])
    assert "has files; expected a new or empty folder" in done.output
    assert CliRunner().invoke(cli.main, ["fortran", str(tmp_path / "new")]).exit_code == 0
    assert (tmp_path / "new" / "src" / "a.f90").read_text() == "a"
