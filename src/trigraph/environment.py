"""The environment of a result: versions, compilers, processor and device.

`trigraph info` prints the environment, and every report contains it. If a component is missing, the functions return
the reason instead of raising an error.
"""

import importlib.resources
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from slopecheck.environment import collect_versions, cpu_model, find_package_version
from slopecheck.terminal import format_pass_mark
from trigraph.arrays import NO_CUPY
from trigraph.backends import BACKENDS, explain_unavailable

if TYPE_CHECKING:
    from rich.console import Console

PACKAGES = ("numpy", "scipy", "rich", "click", "matplotlib", "jinja2", "slopecheck")
# Extras for users, in the order of `trigraph info`; the other extras are for developers.
EXTRAS = ("verify", "torch", "ase", "cuda12", "cuda13", "mpi", "jax", "torch-sim", "lammps", "fortran", "testing")
CUPY_PACKAGES = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
# If one of these variables is set and not 0, the device multiplies float32 matrices with 10-bit mantissas (TF32).
TF32_VARIABLES = ("CUPY_TF32", "NVIDIA_TF32_OVERRIDE")
# Variables that control when glibc returns free memory to the system. A program that frees and reallocates large arrays
# in every step is slower if glibc returns the memory of these arrays each time.
MEMORY_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def _run_git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find_commit_and_dirty() -> tuple[str, bool] | None:
    """Return the commit of the installed sources (PEP 610) and whether the checkout had uncommitted changes.

    Return None if the sources were not in a repository.
    """
    try:
        recorded = distribution("trigraph").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    origin = json.loads(recorded) if recorded else {}
    if "vcs_info" in origin:
        return origin["vcs_info"]["commit_id"], False
    if "dir_info" not in origin:
        return None
    folder = Path(url2pathname(urlsplit(origin["url"]).path))
    # If an archive was unpacked inside another repository, that repository's commit says nothing about the archive.
    top = _run_git(folder, "rev-parse", "--show-toplevel")
    head = _run_git(folder, "rev-parse", "HEAD")
    if top is None or head is None or Path(top).resolve() != folder.resolve():
        return None
    return head, bool(_run_git(folder, "status", "--porcelain"))


def read_build_info() -> dict[str, Any] | None:
    """Return the compilers and flags of the build, or None if the build left no record."""
    record = importlib.resources.files("trigraph") / "build_info.json"
    if not record.is_file():
        return None
    return json.loads(record.read_text(encoding="utf-8"))


def find_fast_path_level() -> tuple[str | None, str]:
    """Return the CPU level of the fast path in use, such as ``x86-64-v3``, or None and the reason."""
    from trigraph.fortran.levels import get_cpu_level

    try:
        return _format_cpu_level(get_cpu_level()), ""
    except (ImportError, ValueError) as error:  # no level was built, or this CPU cannot run TRIGRAPH_CPU_LEVEL
        return None, str(error)


def _format_cpu_level(level: str) -> str:
    return f"x86-64-{level}" if level.startswith("v") else level


def describe_cuda_device() -> dict[str, Any]:
    """Return `name` and versions for the current CUDA device, or the `reason` why there is none."""
    state: dict[str, Any] = dict.fromkeys(("name", "compute_capability", "driver", "runtime", "reason"))
    try:
        import cupy
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        return {**state, "reason": NO_CUPY if missing else f"CuPy cannot be imported: {error}"}
    runtime = cupy.cuda.runtime
    try:
        number = runtime.getDevice()
        properties = runtime.getDeviceProperties(number)
        state["driver"] = runtime.driverGetVersion()
        state["runtime"] = runtime.runtimeGetVersion()
    except runtime.CUDARuntimeError as error:
        return {**state, "reason": f"no CUDA device: {error}"}
    name = properties["name"]
    state["name"] = name.decode() if isinstance(name, bytes) else str(name)
    state["compute_capability"] = f"{properties['major']}.{properties['minor']}"
    return state


def list_tf32_warnings() -> list[str]:
    """Return a warning for each environment variable that reduces the precision of float32 products on a device."""
    return [
        f"{name}={os.environ[name]} allows TF32 (10-bit mantissas) in float32 matrix products on a device: unset it"
        for name in TF32_VARIABLES
        if os.environ.get(name, "0") not in ("", "0")
    ]


def list_platform_warnings() -> list[str]:
    """Return a warning if trigraph has never been run on this kind of system."""
    name = {"Darwin": "macOS"}.get(platform.system(), platform.system())
    return [] if name == "Linux" else [f"trigraph was not tested on {name}: run `trigraph verify` to check it"]


def list_backend_states() -> list[dict[str, Any]]:
    """Return, for every backend and the judge, whether it is available, and its configuration or the reason why not."""
    from trigraph.fortran.levels import find_torch_operator_language
    from trigraph.fortran.threads import get_num_threads

    cuda = describe_cuda_device()
    level, problem = find_fast_path_level()
    language, why = find_torch_operator_language()
    openmp = "with OpenMP" if (read_build_info() or {}).get("openmp") else "without OpenMP"
    details = {
        "fortran": f"fast path for {level}, {get_num_threads()} threads, {openmp}; torch's operators in {language}"
        + f" ({why})" * bool(why),
        "fortran-reference": "direct formula",
        "pyref": "NumPy",
        "gpu": f"{cuda['name']}, compute capability {cuda['compute_capability']}",
        "gpu-host": "the CUDA kernels, emulated on the CPU",
        "judge": "fortran-reference in real128",
    }
    # The judge is compiled from the reference's source, so both are unavailable for the same reason.
    reasons = {
        backend: explain_unavailable("fortran-reference" if backend == "judge" else backend) for backend in details
    }
    reasons["fortran"] = reasons["fortran"] or problem
    return [
        {"backend": backend, "available": not reasons[backend], "detail": reasons[backend] or details[backend]}
        for backend in (*BACKENDS, "judge")
    ]


def list_missing_packages() -> dict[str, list[str]]:
    """Return the names of missing packages for each extra in `EXTRAS`."""
    needed: dict[str, list[str]] = {extra: [] for extra in EXTRAS}
    for requirement in requires("trigraph") or ():
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"]([\w-]+)", requirement)
        if name and extra and extra[1] in needed and name[0] != "trigraph" and find_package_version(name[0]) is None:
            needed[extra[1]].append(name[0])
    return needed


def collect_environment() -> dict[str, Any]:
    """Return the environment in the form that a report contains, ready for JSON."""
    from trigraph.fortran.levels import list_runnable_levels
    from trigraph.fortran.threads import get_num_threads
    from trigraph.gpu.instances import TENSOR_VARIABLE

    commit_id, dirty = find_commit_and_dirty() or (None, None)
    facts = collect_versions(PACKAGES)
    facts["packages"]["cupy"] = next(filter(None, map(find_package_version, CUPY_PACKAGES)), None)
    return {
        "trigraph": {"version": version("trigraph"), "commit": commit_id, "dirty": dirty},
        **facts,
        "build": read_build_info(),
        "cpu": {
            "model": cpu_model(),
            "processors": os.cpu_count(),
            "threads": get_num_threads(),
            "level": find_fast_path_level()[0],
            "levels": [_format_cpu_level(level) for level in list_runnable_levels()],
        },
        "device": describe_cuda_device(),
        "variables": {name: os.environ.get(name) for name in (*TF32_VARIABLES, *MEMORY_VARIABLES, TENSOR_VARIABLE)},
        "warnings": list_platform_warnings() + list_tf32_warnings(),
        "backends": list_backend_states(),
    }


def print_environment(console: "Console", facts: Mapping[str, Any]) -> None:
    """Print the result of `collect_environment`: versions, processor, device and build, then the backends."""
    from rich.markup import escape
    from rich.table import Table

    source, build, cpu, cuda = facts["trigraph"], facts["build"] or {}, facts["cpu"], facts["device"]
    origin = f"commit {source['commit']}" if source["commit"] else "not installed from a repository"
    rows = {
        "trigraph": f"{source['version']}, {origin}{', changed since' if source['dirty'] else ''}",
        "Python": f"{facts['python']}, {facts['system']}",
        "packages": ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version),
        "processor": f"{cpu['model']}, {cpu['processors']} processors",
        "fast path": f"{cpu['level'] or 'none'} of {', '.join(cpu['levels']) or 'none'}, {cpu['threads']} threads "
        "(OMP_NUM_THREADS; by default the processors, divided among the MPI ranks of a machine)",
        "device": cuda["reason"] or f"{cuda['name']}, driver {cuda['driver']}, CUDA runtime {cuda['runtime']}",
    }
    if facts["warnings"]:
        rows["warning"] = "; ".join(facts["warnings"])
    if build:
        rows["Fortran"] = f"{build['fortran_compiler']} {build['fortran_version']}"
        rows["C++"] = f"{build['cpp_compiler']} {build['cpp_version']}"
        rows["OpenMP"] = "yes" if build["openmp"] else "no"
        rows |= {f"flags, {library}": flags for library, flags in build["flags"].items()}
    table = Table.grid(padding=(0, 2))
    for name, text in rows.items():
        table.add_row(f"[bold]{name}[/]", escape(text))
    console.print(table)
    console.print()
    backends = Table.grid(padding=(0, 2))
    for state in facts["backends"]:
        backends.add_row(
            format_pass_mark(console, state["available"]), f"[bold]{state['backend']}[/]", escape(state["detail"])
        )
    console.print(backends)
