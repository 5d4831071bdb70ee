"""Tests that every kernel instance compiles with NVRTC for every architecture, and that only listed ones spill.

No GPU is needed. `make test` compiles one instance of every kernel for one architecture, which depends on the commit.
"""

import functools
import importlib.util
import io
import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor

import pytest
from host_kernels import find_selection_number, skip_unless_available

from trigraph.gpu import cache, spills
from trigraph.gpu.instances import INSTANCES
from trigraph.gpu.sources import expand_includes
from trigraph.gpu.spills import ARCHITECTURES, LocalMemoryUsage, describe_unexpected_local_memory

# The compiler options of the launcher, and an option that CuPy adds.
OPTIONS = {"std": "c++17", "ftz": False, "device_as_default_execution_space": True}


def compile_and_measure_memory(source, instances, architecture):
    """Compile a ``.cu`` file for an architecture, and return the local memory used by each instance."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(name=source.name, arch=architecture, ptxas_options="-v", **OPTIONS)
    log = io.StringIO()
    program = Program(expand_includes(source.resolve(), source.resolve().parent.parent, {}), "c++", options)
    code = program.compile("cubin", name_expressions=tuple(instances), logs=log)
    memory = re.compile(
        r"Function properties for (\S+)\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    )
    usage = {
        name: LocalMemoryUsage(int(stack), int(a) + int(b)) for name, stack, a, b in memory.findall(log.getvalue())
    }
    return {name: usage[bytes(symbol).decode()] for name, symbol in code.symbol_mapping.items()}


@pytest.fixture(scope="module")
def require_nvrtc():
    installed = all(importlib.util.find_spec(name) for name in ("cuda", "cuda.core", "cuda.bindings"))
    skip_unless_available(installed, "cuda-core with nvidia-cuda-nvrtc and nvidia-cuda-runtime")


@pytest.fixture(scope="module")
def compilation_futures(require_nvrtc, request):
    """Compile everything that the selected slow tests need, using one process per core."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    compiled_pairs = [(p["family"], p["architecture"]) for p in parameters if "architecture" in p]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        yield {
            (family, arch): pool.submit(
                compile_and_measure_memory, cache.KERNELS / f"{family}.cu", INSTANCES[family], arch
            )
            for family, arch in compiled_pairs
        }


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("family", INSTANCES)
def test_only_listed_instances_spill(compilation_futures, family, architecture):
    usages = compilation_futures[family, architecture].result()
    assert set(usages) == set(INSTANCES[family])
    assert describe_unexpected_local_memory(usages) == []


@pytest.mark.usefixtures("require_nvrtc")
@pytest.mark.parametrize("family", [pytest.param(f, marks=[pytest.mark.slow] * (f == "dimenet")) for f in INSTANCES])
def test_one_instance_of_every_kernel_compiles(family):
    by_kernel, architecture = {}, ARCHITECTURES[find_selection_number() % len(ARCHITECTURES)]
    for name in INSTANCES[family]:
        by_kernel.setdefault(name.split("<")[0], []).append(name)
    turn = find_selection_number() // len(ARCHITECTURES)
    names = [instances[turn % len(instances)] for instances in by_kernel.values()]
    usages = compile_and_measure_memory(cache.KERNELS / f"{family}.cu", names, architecture)
    assert [*usages] == names
    assert describe_unexpected_local_memory(usages) == []


def test_spill_lists_contain_only_existing_names():
    names = {name for instances in INSTANCES.values() for name in instances}
    assert {*spills.SPILLS} <= names
    assert {*spills.STACK_KERNELS} <= {name.partition("<")[0] for name in names}


@pytest.mark.usefixtures("require_nvrtc")
def test_spill_checks_use_the_launch_options():
    from cuda.core import ProgramOptions

    options = {option.decode() for option in ProgramOptions(arch="sm_90", **OPTIONS).as_bytes("nvrtc")}
    assert options == {*cache.OPTIONS, "--device-as-default-execution-space", "-arch=sm_90"}


@pytest.mark.usefixtures("require_nvrtc")
def test_unlisted_spills_and_stacks_are_reported(tmp_path, monkeypatch):
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
    usages = compile_and_measure_memory(source, ["spilling", "plain"], "sm_90")
    assert usages["plain"] == LocalMemoryUsage(0, 0)
    assert usages["spilling"].spills > 0
    assert describe_unexpected_local_memory(usages) == [f"spilling has {usages['spilling']}"]
    assert describe_unexpected_local_memory({"indexed": LocalMemoryUsage(stack=8, spills=0)}) == [
        "indexed has LocalMemoryUsage(stack=8, spills=0)"
    ]
    monkeypatch.setitem(spills.SPILLS, "spilling", "it is a test")
    assert describe_unexpected_local_memory({"spilling": LocalMemoryUsage(8, 151)}) == [
        "spilling has LocalMemoryUsage(stack=8, spills=151)"
    ]
    assert describe_unexpected_local_memory({"spilling": LocalMemoryUsage(8, 150)}) == []


def test_cupy_adds_only_known_compile_options(monkeypatch):
    """CuPy's undocumented `compile_using_nvrtc` accepts trigraph's arguments, and does not add -ftz=true."""
    cupy = pytest.importorskip("cupy")

    def check_options_and_interrupt(program, options):
        assert options == (*cache.OPTIONS, "-arch=compute_90", "--device-as-default-execution-space")
        raise InterruptedError

    monkeypatch.setattr(cupy.cuda.nvrtc, "compileProgram", check_options_and_interrupt)
    call = functools.partial(cupy.cuda.compiler.compile_using_nvrtc, "", cache.OPTIONS, arch="90", method="lto")
    with pytest.raises(InterruptedError):  # raised in place of linking, for which CuPy needs a device
        call(filename="product.cu", name_expressions=("product<float>",))
