"""Tests of the gpu-host build: rewriting of CUDA declarations, generated sources, dependencies, and errors."""

import sys

import pytest
from host_kernels import require_compiler
from programs import run_command

from trigraph.gpu.host import build
from trigraph.gpu.host.build import SourceError, build_host_library, rewrite_shared_declarations

COMMAND = [sys.executable, build.__file__]


@pytest.mark.parametrize(
    ("declaration", "rewritten"),
    [
        ("alignas(16) __shared__ T x[N];", "T (&x)[N] = "),
        ("__shared__ Pair<T> x[N];", "Pair<T> (&x)[N] = ::cuda_host::get_static_shared_array<Pair<T>[N], 1>("),
        ('f("__shared__ int");', 'f("__shared__ int");'),
    ],
)
def test_shared_declarations_become_references(declaration, rewritten):
    """Declarations in shared memory are rewritten as references (the package's kernels cover the other forms)."""
    assert rewrite_shared_declarations(declaration).startswith(rewritten)


def test_rewrite_keeps_line_count():
    rewritten = rewrite_shared_declarations("__shared__ T\n    x[8 +\n 1]\n;")
    assert rewritten.splitlines()[0] == 'T (&x)[8 + 1] = ::cuda_host::get_static_shared_array<T[8 + 1], 1>("x");'
    assert rewritten.count("\n") == 3


@pytest.mark.parametrize(
    "declaration",
    [
        "__shared__ float a[3], b;",
        "#define TILE __shared__ float",
        "extern __shared__ float x;",
        "__shared__ float* p;",
    ],
)
def test_rewrite_refuses_unsupported_declarations(declaration):
    with pytest.raises(SourceError, match=r"^y.cu:8: "):
        rewrite_shared_declarations(f'#line 7 "y.cu"\n\n{declaration}\n')


@pytest.fixture
def toy_family(tmp_path):
    """A copy of the layout of gpu/ with one small family."""
    source = tmp_path / "gpu"
    (source / "kernels").mkdir(parents=True)
    (source / "kernels" / "toy.cu").write_text('#include "toy.cuh"\n__global__ void other(int n) {}\n')
    template = "template <class T> __global__ void toy(T* x) { x[threadIdx.x] = T(1); }\n"
    (source / "kernels" / "toy.cuh").write_text(template)
    (source / "instances.py").write_text("INSTANCES = {'toy': ('toy<float>', 'toy<double>', 'other')}\n")
    return source


def run_generator(family, *arguments, status=0):
    options = ["--family", "toy", "--source-dir", family, "--generate"]
    return run_command(*COMMAND, *options, *arguments, status=status).stderr


def test_generator_writes_source_and_dependencies(toy_family, tmp_path):
    assert run_generator(toy_family, tmp_path / "toy.cpp", "--depfile", tmp_path / "toy.d") == ""
    text = (tmp_path / "toy.cpp").read_text()
    assert '{"toy<double>", "x", ' in text
    kernels = toy_family / "kernels"
    assert (tmp_path / "toy.d").read_text() == f"{tmp_path}/toy.cpp: {kernels}/toy.cu {kernels}/toy.cuh\n"


@pytest.mark.parametrize(
    ("instances", "expected_message"),
    [
        ("('toy<float>', 'thing', 'other')", "toy.cu has no __global__ function thing (wanted as thing)"),
        ("('toy<float>',)", "toy.cu: no instance is listed of other"),
    ],
)
def test_generator_refuses_wrong_instance_lists(toy_family, tmp_path, instances, expected_message):
    (toy_family / "instances.py").write_text(f"INSTANCES = {{'toy': {instances}}}\n")
    assert expected_message in run_generator(toy_family, tmp_path / "toy.cpp", status=1)


def test_floating_point_atomics_do_not_compile(tmp_path):
    """A kernel that calls atomicAdd on floats does not compile, and the error contains the compiler's message."""
    require_compiler()
    source = tmp_path / "kernels" / "toy.cu"
    source.parent.mkdir()
    source.write_text("__global__ void toy(float* x) { atomicAdd(x, 1.0f); }\n")
    with pytest.raises(RuntimeError, match=r".atomicAdd. was not declared in this scope"):
        build_host_library("toy", source=source, instances=["toy"])
