"""Tests that every kernel instance compiles with NVRTC for every architecture, and that only listed ones spill.

No GPU is needed. `make test` compiles one instance of every kernel for one architecture, which depends on the commit.
"""

import functools
import importlib.util
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
from host_kernels import get_rotation_number, skip_unless_available

from trigraph.gpu import cache, spills
from trigraph.gpu.instances import INSTANCES
from trigraph.gpu.spills import ARCHITECTURES, KERNELS, Usage, compile_kernels, find_unexpected


@pytest.fixture(scope="module")
def nvrtc_module():
    installed = all(importlib.util.find_spec(name) for name in ("cuda", "cuda.core", "cuda.bindings"))
    skip_unless_available(installed, "cuda-core with nvidia-cuda-nvrtc and nvidia-cuda-runtime")


@pytest.fixture(scope="module")
def compiled_kernels(nvrtc_module, request):
    """Compile everything that the selected slow tests need, using one process per core."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    compiled_pairs = [(p["family"], p["architecture"]) for p in parameters if "architecture" in p]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        yield {
            (family, arch): pool.submit(compile_kernels, KERNELS / f"{family}.cu", INSTANCES[family], arch)
            for family, arch in compiled_pairs
        }


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("family", INSTANCES)
def test_only_listed_instances_spill(compiled_kernels, family, architecture):
    usages = compiled_kernels[family, architecture].result()
    assert set(usages) == set(INSTANCES[family])
    assert find_unexpected(usages) == []


@pytest.mark.usefixtures("nvrtc_module")
@pytest.mark.parametrize("family", [pytest.param(f, marks=[pytest.mark.slow] * (f == "dimenet")) for f in INSTANCES])
def test_one_instance_of_every_kernel(family):
    by_kernel, architecture = {}, ARCHITECTURES[get_rotation_number() % len(ARCHITECTURES)]
    for name in INSTANCES[family]:
        by_kernel.setdefault(name.split("<")[0], []).append(name)
    turn = get_rotation_number() // len(ARCHITECTURES)
    names = [instances[turn % len(instances)] for instances in by_kernel.values()]
    usages = compile_kernels(KERNELS / f"{family}.cu", names, architecture)
    assert [*usages] == names
    assert find_unexpected(usages) == []


def test_spill_lists_name_instances():
    names = {name for instances in INSTANCES.values() for name in instances}
    assert {*spills.SPILLS} <= names
    assert {*spills.STACK_KERNELS} <= {name.split("<")[0] for name in names}


@pytest.mark.usefixtures("nvrtc_module")
def test_options_are_those_of_launches():
    from cuda.core import ProgramOptions

    options = {option.decode() for option in ProgramOptions(arch="sm_90", **spills.OPTIONS).as_bytes("nvrtc")}
    assert options == {*cache.OPTIONS, "--device-as-default-execution-space", "-arch=sm_90"}


@pytest.mark.usefixtures("nvrtc_module")
def test_spills_are_seen(tmp_path, monkeypatch):
    source = tmp_path / "spilling.cu"
    source.write_text("""
__global__ void __launch_bounds__(1024) spilling(const double* x, double* y) {
    double v[96];
    #pragma unroll
    for (int i = 0; i < 96; i++) v[i] = x[threadIdx.x + 1024 * i];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; i++) y[threadIdx.x + 1024 * i] = v[i] * v[95 - i];
}
__global__ void plain(double* y) { y[threadIdx.x] = 1; }
""")
    usages = compile_kernels(source, ["spilling", "plain"], "sm_90")
    assert usages["plain"] == Usage(0, 0)
    assert usages["spilling"].spills > 0
    assert find_unexpected(usages) == [f"spilling has {usages['spilling']}"]
    assert find_unexpected({"indexed": Usage(stack=8, spills=0)}) == ["indexed has Usage(stack=8, spills=0)"]
    monkeypatch.setitem(spills.SPILLS, "spilling", "it is a test")
    assert find_unexpected({"spilling": Usage(8, 151)}) == ["spilling has Usage(stack=8, spills=151)"]
    assert find_unexpected({"spilling": Usage(8, 150)}) == []


def test_options_that_cupy_adds(monkeypatch):
    """CuPy's undocumented `compile_using_nvrtc` accepts trigraph's arguments, and does not add -ftz=true."""
    cupy = pytest.importorskip("cupy")

    def check_options(program, options):
        assert options == (*cache.OPTIONS, "-arch=compute_90", "--device-as-default-execution-space")
        raise InterruptedError

    monkeypatch.setattr(cupy.cuda.nvrtc, "compileProgram", check_options)
    call = functools.partial(cupy.cuda.compiler.compile_using_nvrtc, "", cache.OPTIONS, arch="90", method="lto")
    with pytest.raises(InterruptedError):  # raised in place of linking, for which CuPy needs a device
        call(filename="product.cu", name_expressions=("product<float>",))
