"""The Fortran sources for programs without Python: they build, and the C functions give the package's results."""

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
    """Built as its meson.build says, unoptimised; the parts on both processors."""
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
    given = {n: int(values[n.removeprefix("has_")] is not None) for n in order.dims if n.startswith("has_")}
    passed = [ctypes.c_int(2), *(ctypes.c_int((sizes | given)[n]) for n in order.dims)]
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
    found = {}
    for f in op.fields:
        shape = trigraph.checks.shape_of(f, sizes) if f.name in fields else (1,)
        found[f.name] = np.full(shape, -7, index if f.index else dtype)
    passed += [a.ctypes.data_as(ctypes.c_void_p) for a in found.values()]
    assert getattr(library, name)(*passed) == 0
    # A size that is negative, and no threads, are refused before anything is read.
    for place, wrong in [(0, 0), (0, -1), *((k + 1, -1) for k in range(len(order.dims)))]:
        changed = [*passed[:place], ctypes.c_int(wrong), *passed[place + 1 :]]
        assert getattr(library, name)(*changed) == export.REFUSED
    return {n: found[n] for n in fields}


def calls(definition, case):
    """Operators of a definition with arguments; with each that fwd returned and bwd may be given back, alone, too."""
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
                # Built without fused multiply-adds: rounding differs, and 1,000 eps are far from any mistake.
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
        (found,) = re.findall(rf"^function {name}\(([^)]*)\)", interface, re.MULTILINE)
        assert arguments.count(",") == found.count(",")


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
