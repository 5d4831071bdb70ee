"""Every kernel instance compiles with NVRTC (no GPU needed) for every architecture, within its budget of registers.

`make test` compiles one instance of every kernel for one architecture, selected by the commit; `make test-all` all.
"""

import functools
import importlib.util
import json
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
from host_kernels import require, rotating_subset

from trigraph.gpu import budgets as gpu_budgets
from trigraph.gpu import cache
from trigraph.gpu.budgets import ARCHITECTURES, KERNELS, Usage, compare, compile_kernels, make_budgets
from trigraph.gpu.instances import INSTANCES

SMALL = Usage(registers=20, stack=0, spill_stores=0, spill_loads=0, barriers=1, shared=512)


@pytest.fixture(scope="module")
def nvrtc():
    installed = all(importlib.util.find_spec(name) for name in ("cuda", "cuda.core", "cuda.bindings"))
    require(installed, "cuda-core with nvidia-cuda-nvrtc and nvidia-cuda-runtime")


@pytest.fixture(scope="module")
def compiled(nvrtc, request):
    """What the selected slow tests need, compiled by as many processes as there are cores."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = [(p["family"], p["architecture"]) for p in parameters if "architecture" in p]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        yield {
            (family, arch): pool.submit(compile_kernels, KERNELS / f"{family}.cu", INSTANCES[family], arch)
            for family, arch in wanted
        }


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("family", INSTANCES)
def test_kernels_keep_to_their_budgets(compiled, family, architecture):
    measured = compiled[family, architecture].result()
    assert set(measured) == set(INSTANCES[family])
    assert compare(family, architecture, measured, gpu_budgets.read_budgets()) == []


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("family", INSTANCES)
def test_one_instance_of_every_kernel(family):
    by_kernel, architecture = {}, ARCHITECTURES[rotating_subset() % len(ARCHITECTURES)]
    for name in INSTANCES[family]:
        by_kernel.setdefault(name.split("<")[0], []).append(name)
    names = [instances[rotating_subset() // len(ARCHITECTURES) % len(instances)] for instances in by_kernel.values()]
    measured = compile_kernels(KERNELS / f"{family}.cu", names, architecture)
    assert compare(family, architecture, measured, gpu_budgets.read_budgets()) == []


def test_budgets_are_of_the_instances():
    budgets = gpu_budgets.read_budgets()
    assert {family: set(names) for family, names in INSTANCES.items()} == {f: set(b) for f, b in budgets.items()}
    assert all(set(ARCHITECTURES) <= set(entry) for entries in budgets.values() for entry in entries.values())


@pytest.mark.usefixtures("nvrtc")
def test_budgets_are_of_what_is_launched():
    from cuda.core import ProgramOptions

    options = {option.decode() for option in ProgramOptions(arch="sm_90", **gpu_budgets.OPTIONS).as_bytes("nvrtc")}
    assert options == {*cache.OPTIONS, "--device-as-default-execution-space", "-arch=sm_90"}


@pytest.mark.usefixtures("nvrtc")
def test_spills_are_seen(tmp_path):
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
""")
    measured = compile_kernels(source, ["spilling"], "sm_90")
    assert measured["spilling"].spill_stores > 0
    budgets = make_budgets({"f": {"sm_90": measured}}, {})
    (problem,) = compare("f", "sm_90", measured, budgets)
    assert problem == "f: spilling on sm_90 spills registers and the budget gives no spill_reason"
    reason = {"f": {"spilling": {"spill_reason": "it is a test"}}}
    assert compare("f", "sm_90", measured, make_budgets({"f": {"sm_90": measured}}, reason)) == []


def test_compare():
    budgets = make_budgets({"f": {"sm_80": {"k": SMALL}}}, {})
    assert budgets["f"]["k"]["sm_80"].registers == 24
    assert compare("f", "sm_80", {"k": SMALL._replace(registers=24)}, budgets) == []
    assert compare("f", "sm_80", {"k": SMALL._replace(registers=25)}, budgets) == [
        "f: k on sm_80 uses 25 (registers), budget 24"
    ]
    assert compare("f", "sm_80", {"k": SMALL._replace(stack=8, shared=513)}, budgets) == [
        "f: k on sm_80 uses 8 (stack), budget 0",
        "f: k on sm_80 uses 513 (shared), budget 512",
    ]
    assert compare("f", "sm_90", {"k": SMALL}, budgets) == ["f: k on sm_90 has no budget"]


def test_budgets_for_two_compilers():
    first = make_budgets({"f": {"sm_80": {"k": SMALL}}}, {"f": {"k": {"spill_reason": "small"}}})
    other = SMALL._replace(registers=30, shared=100, stack=4)
    raised = make_budgets({"f": {"sm_80": {"k": other}}}, first, raised=True)
    assert raised["f"]["k"]["sm_80"] == SMALL._replace(registers=32, stack=4)
    assert raised["f"]["k"]["spill_reason"] == "small"
    assert compare("f", "sm_80", {"k": SMALL}, raised) == compare("f", "sm_80", {"k": other}, raised) == []


@pytest.mark.usefixtures("nvrtc")
def test_command_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "toy.cu").write_text("__global__ void toy(float* x) { x[threadIdx.x] = 1.0f; }\n")
    (tmp_path / "budgets.json").write_text("{}")
    monkeypatch.setattr(gpu_budgets, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(gpu_budgets, "BUDGETS", tmp_path / "budgets.json")
    monkeypatch.setattr(gpu_budgets, "INSTANCES", {"toy": ("toy",)})
    assert gpu_budgets.main([]) == 1
    assert "toy: toy on sm_75 has no budget" in capsys.readouterr().err
    assert gpu_budgets.main(["--update"]) == 0
    assert gpu_budgets.main([]) == 0
    assert gpu_budgets.main(["--raise"]) == 0
    assert set(json.loads((tmp_path / "budgets.json").read_text())["toy"]["toy"]) == set(ARCHITECTURES)
    assert "cupy" not in sys.modules


def test_what_cupy_adds_to_the_options(monkeypatch):
    """CuPy's undocumented function below `RawModule` has the same parameters as before, and adds no -ftz=true."""
    cupy = pytest.importorskip("cupy")

    def compiled(program, options):
        assert options == (*cache.OPTIONS, "-arch=compute_90", "--device-as-default-execution-space")
        raise InterruptedError

    monkeypatch.setattr(cupy.cuda.nvrtc, "compileProgram", compiled)
    call = functools.partial(cupy.cuda.compiler.compile_using_nvrtc, "", cache.OPTIONS, arch="90", method="lto")
    with pytest.raises(InterruptedError):  # raised in place of the link, before CuPy asks for a device
        call(filename="product.cu", name_expressions=("product<float>",))
