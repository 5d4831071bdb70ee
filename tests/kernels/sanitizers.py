"""Run a family's kernels in instrumented builds, record launches, and fill workspace with NaN."""

import contextlib
import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from host_kernels import require_compiler, skip_unless_available

from trigraph.benchmarks.qualify import cases
from trigraph.benchmarks.qualify.cases import list_covered_instances
from trigraph.benchmarks.qualify.place import Rehearsal
from trigraph.gpu.cache import KERNELS
from trigraph.gpu.host.build import build_host_library, make_sanitizer_environment
from trigraph.gpu.launcher import ORDERS, HostLibrary, KernelError, using_host_library
from trigraph.gpu.sources import expand_includes


class LaunchRecorder(HostLibrary):
    """A library that records which kernel instances it launches."""

    def __init__(self, path):
        super().__init__(path)
        self.launched = set()

    def launch(self, name, *args):
        self.launched.add(name)
        super().launch(name, *args)


def compute_and_judge_family(family):
    """Run all cases of a family, compare the results with the judge's, and return them."""
    place = Rehearsal()
    with place.fill_uninitialized():  # fills uninitialised workspace with NaN
        return cases.compare_kernels_with_judge(family, place)


def check_family_results(family, path, order):
    """Assert that the cases launch all kernels, and that their results are bitwise identical in every thread order."""
    library = LaunchRecorder(path)
    with using_host_library(library, order, seed=5):
        fields = compute_and_judge_family(family)
    assert library.launched == set(list_covered_instances(family))
    first = _FIRST_RESULTS.setdefault(path, fields)
    assert fields.keys() == first.keys()
    for what, array in fields.items():
        assert array.tobytes() == first[what].tobytes(), f"{what}: different bits in order {order}"


_FIRST_RESULTS = {}


_BARRIER = re.compile(r"\b__sync(?:threads|warp)\(\);")


def list_barriers(family):
    """Return the barriers in a family's sources as (file, index of the barrier in the file)."""
    sources = {}
    expand_includes(KERNELS / f"{family}.cu", KERNELS.parent, sources)
    return [(path.name, k) for path, text in sources.items() for k in range(len(_BARRIER.findall(text)))]


_SWITCH_DECLARATION = 'extern "C" { __attribute__((visibility("default"))) int cuda_host_left_out = -1; }'


def build_library_with_barrier_switch(family, variant, include=None, instances=None):
    """Build a library whose barriers can be disabled (see `disable_barrier`); return its path.

    By default, it has the instances that the family's cases launch; with `include`, only this header's `instances`.
    """
    require_compiler()
    with tempfile.TemporaryDirectory() as folder:
        copies = Path(folder) / "kernels"
        shutil.copytree(KERNELS, copies)
        for number, (file, k) in reversed([*enumerate(list_barriers(family))]):
            text = (copies / file).read_text(encoding="utf-8")
            start = [match.start() for match in _BARRIER.finditer(text)][k]
            switched = f"{text[:start]}if (cuda_host_left_out != {number}) {text[start:]}"
            (copies / file).write_text(switched, encoding="utf-8")
        source = copies / f"{family}.cu"
        text = source.read_text(encoding="utf-8") if include is None else f'#include "{include}"\n'
        source.write_text(f"{_SWITCH_DECLARATION}\n{text}", encoding="utf-8")
        instances = list_covered_instances(family) if instances is None else instances
        return str(build_host_library(family, variant, source=source, instances=instances))


@contextlib.contextmanager
def disable_barrier(library, family, barrier):
    """Disable one of the barriers that `list_barriers` returns."""
    switch = ctypes.c_int.in_dll(library._library, "cuda_host_left_out")
    switch.value = list_barriers(family).index(barrier)
    try:
        yield
    finally:
        switch.value = -1


def find_missing_barrier_error(family, library, barrier):
    """Run all cases with one barrier disabled; return the resulting error, or None.

    Parameters
    ----------
    library
        Path returned by `build_library_with_barrier_switch`.
    """
    opened, first = HostLibrary(library), None
    try:
        for order in ("random",) if "race" in Path(library).name else ORDERS:
            with disable_barrier(opened, family, barrier), using_host_library(opened, order, seed=5):
                fields = compute_and_judge_family(family)
            first = first or fields
            for what, array in fields.items():
                if array.tobytes() != first[what].tobytes():
                    return f"{what}: different bits in order {order}"
    except (KernelError, AssertionError) as error:
        return str(error)
    return None


def run_with_address_sanitizer(*arguments):
    """Run a test file in a new process that loads AddressSanitizer first.

    Returns
    -------
    tuple of str
        Standard output, and AddressSanitizer's reports.
    """
    require_compiler()
    environment = make_sanitizer_environment()
    skip_unless_available(Path(environment["LD_PRELOAD"]).is_file(), "libasan")
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr
