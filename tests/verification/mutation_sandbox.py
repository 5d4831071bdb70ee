"""A copy of the checkout in which mutated sources are built and verified; only affected files are rebuilt.

`mutations.py` lists the mutations.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trigraph.table import FAMILIES

ROOT = Path(__file__).resolve().parents[2]

FRAMEWORK = "torch"  # torch implementations shared by all families, verified like a backend
# Backend -> a family's main files, some of which may not exist. Files they include, import or use also belong to it.
BACKENDS = {
    "fortran": ("fortran/fast/{}.fypp", "src/trigraph/backends/third.py", "src/trigraph/backends/third_{}.py"),
    "fortran-reference": ("fortran/reference/{}.fypp",),
    "pyref": ("pyref/{}.py", "pyref/__init__.py"),
    "gpu-host": ("gpu/{}.py", "gpu/kernels/{}.cu"),
    FRAMEWORK: ("src/trigraph/torch/plain.py", "src/trigraph/torch/jets.py"),
}
USE_PATTERN = re.compile(
    r"^\s*(?:#:?include\s+['\"]([\w.]+)['\"]|use trigraph_(\w+)"
    r"|from trigraph\.(?:gpu|pyref)(?:\.(\w+))? import ([\w, ]+))",
    re.MULTILINE,
)
# Fortran template that declares procedures -> C template that defines them.
C_TEMPLATES = {
    "fortran/fast/pieces.fypp": "fortran/fast/rows.c.fypp",
    "fortran/fast/dimenet.fypp": "fortran/fast/dimenet_features.c.fypp",
}
# Files shared by all families, which are not mutated.
SHARED_FILES = ("kinds", "types.fypp", "shared.inc", "launcher")

# Run `trigraph verify --operator FAMILY --backend BACKEND ...`, fast units first, and stop at the first failed check or
# hanging unit. Print each unit before it starts, and the failure. A label selects a single unit.
VERIFY = """
import faulthandler, resource, sys
from trigraph.verification.run import plan_run
from slopecheck.units import count_checks, execute

resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
family, backends, label = sys.argv[1], sys.argv[2].split(), sys.argv[3]
own = [p for p in backends if p not in ("judge", "torch")]
units = plan_run([family], own, framework="torch" if "torch" in backends else None)
if "judge" in backends:
    units += plan_run([family], ["judge"], ["float64"], 0)
for unit in sorted({u.label: u for u in units}.values(), key=lambda u: u.weight):
    if label in ("", unit.label):
        print(unit.label, flush=True)
        faulthandler.dump_traceback_later(300, exit=True)
        ((_, found),) = execute([unit])
        failed = [c for c in found if c.failed]
        for check in failed[:1]:
            sys.exit(f"{check.kind}: {check.operator}, {check.case}, {check.dtype}: {check.backend} {check.field}")
        if count_checks(found) != unit.planned():
            sys.exit(f"{unit.label}: {count_checks(found)} checks were made; {unit.planned()} were planned")
"""

# Replace the output of fypp only if it changed, so that f2py and gfortran are not rerun unnecessarily.
FYPP = """#!{python}
import pathlib, subprocess, sys
*arguments, out = sys.argv[1:]
status = subprocess.run([{fypp!r}, *arguments, out + ".new"]).returncode
new, old = pathlib.Path(out + ".new"), pathlib.Path(out)
if status == 0 and not (old.exists() and old.read_bytes() == new.read_bytes()):
    new.replace(old)
sys.exit(status)
"""


@cache
def _used_by(file: str) -> tuple[str, ...]:
    """Return the files that a file includes, imports or uses from its own folder."""
    files = [C_TEMPLATES[file]] if file in C_TEMPLATES else []
    for match in USE_PATTERN.finditer((ROOT / file).read_text()):
        include, module, source, imported = match.groups()
        names = [include, module, source, *(imported.split(", ") if imported and not source else ())]
        for name in filter(None, names):
            if name in SHARED_FILES:
                continue
            paths = [Path(file).parent / (name + end) for end in ("", ".fypp", ".f90", ".py")]
            files += [str(p) for p in paths if (ROOT / p).is_file()]
    return tuple(dict.fromkeys(files))


@cache
def family_files(backend: str, family: str) -> tuple[str, ...]:
    """Return a family's sources in a backend, including those that families share."""
    files = [file for name in BACKENDS[backend] if (ROOT / (file := name.format(family))).is_file()]
    for file in files:
        files += [name for name in _used_by(file) if name not in files]
    return tuple(files)


def find_families(backend: str, file: str) -> tuple[str, ...]:
    """Return the families that use a source file in a backend."""
    return tuple(family for family in FAMILIES if file in family_files(backend, family))


def find_backend(file: str) -> str:
    """Return the backend that uses a source file."""
    return next(backend for backend in BACKENDS if find_families(backend, file))


def _list_checkout_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def _sources() -> list[str]:
    """Return the names of the package's source files."""
    return [
        name
        for name in _list_checkout_files()
        if name.startswith(("src/", "fortran/", "pyref/", "gpu/", "verification/"))
    ]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mutation: its status (``"passed"``, ``"failed"`` or ``"not built"``), reason and seconds."""

    status: str
    refusal: str
    seconds: float


class Sandbox:
    """A copy of the checkout with its own build folder and installed package.

    A sandbox left by an earlier run is brought up to date.
    """

    def __init__(self, folder: Path) -> None:
        self.checkout, self._build, self._site, self._bin = (folder / n for n in ("checkout", "build", "site", "bin"))
        self._folder = folder
        self._copy_checkout()
        self._install()
        self._configure()

    def _copy_checkout(self) -> None:
        listed = _list_checkout_files()
        if self.checkout.is_dir():
            for path in [p for p in self.checkout.rglob("*") if p.is_file()]:
                if str(path.relative_to(self.checkout)) not in listed:
                    path.unlink()
        for name in listed:
            to = self.checkout / name
            if not to.is_file() or to.read_bytes() != (ROOT / name).read_bytes():
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, to)

    def _install(self) -> None:
        """Copy the installed package, with the fast-path library for this CPU only."""
        import trigraph
        from trigraph.fortran.levels import get_cpu_level, list_runnable_levels

        shutil.rmtree(self._site, ignore_errors=True)
        self._installed = Path(trigraph.__file__).parent
        # Python uses a stale .pyc file if the source's size and modification time in seconds are unchanged.
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(self._installed, self._site / "trigraph", ignore=ignored)
        self._level = get_cpu_level()
        for level in list_runnable_levels():
            if level != self._level:  # the libraries of other levels are not rebuilt
                (self._site / "trigraph" / self._fast(level)).unlink()
        for name in _sources():
            installed = self._site / "trigraph" / name.removeprefix("src/trigraph/")
            if installed.is_file() and installed.read_bytes() != (ROOT / name).read_bytes():
                raise RuntimeError(f"{name} differs from what is installed; `make .venv/installed` installs it")

    def _configure(self) -> None:
        """Configure meson with a wrapper of fypp that does not rewrite unchanged output."""
        self._bin.mkdir(exist_ok=True)
        search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        fypp = shutil.which("fypp", path=search)
        (self._bin / "fypp").write_text(FYPP.format(python=sys.executable, fypp=fypp))
        (self._bin / "fypp").chmod(0o755)
        self._unchanged_environment = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRIGRAPH_CPU_LEVEL")
        }
        self._environment = {
            **self._unchanged_environment,
            "PATH": os.pathsep.join([str(self._bin), search]),
            "PYTHONPATH": str(self._site),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if not (self._build / "build.ninja").is_file():
            options = ["-Dcpu_levels=native,v3", "-Dgpu_host=true"]
            done = self._run_command(["meson", "setup", *options, str(self._build), str(self.checkout)])
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)

    def _run_command(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self._folder,
            env=environment or self._environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )

    @staticmethod
    def _library(backend: str, name: str) -> str:
        return f"{backend}/{name}{sysconfig.get_config_var('EXT_SUFFIX')}"

    @staticmethod
    def _fast(level: str) -> str:
        return f"fortran/libtrigraph_{level}.so"

    def _libraries(self, backend: str, family: str) -> list[str]:
        """Return the libraries that determine the results of a family in a backend."""
        if backend == "fortran":
            return [self._fast(self._level)]
        if backend == "fortran-reference":
            return [self._library("fortran", name) for name in ("_reference", "_judge")]
        return [self._library("gpu", f"_host_{family}")] if backend == "gpu-host" else []

    def build(self, backend: str, family: str) -> str:
        """Build and install the libraries of a family in a backend; return the output of a failed build, or ""."""
        libraries = self._libraries(backend, family)
        if libraries:
            done = self._run_command(["ninja", "-C", str(self._build), *libraries])
            if done.returncode:
                return done.stdout + done.stderr
        for library in libraries:
            shutil.copy(self._build / library, self._site / "trigraph" / library)
        return ""

    def verify(self, backend: str, family: str) -> Outcome:
        """Build and verify a family in a backend; for the reference, in all backends, since the judge is built from it.

        Raises RuntimeError if the failing unit also fails with the original sources.
        """
        start = time.monotonic()
        compiler_output = self.build(backend, family)
        if compiler_output:
            return Outcome("not built", compiler_output, time.monotonic() - start)
        backends = " ".join([*(BACKENDS.keys() - {FRAMEWORK}), "judge"]) if backend == "fortran-reference" else backend
        done = self._run_command([sys.executable, "-c", VERIFY, family, backends, ""])
        outcome = Outcome("passed", "", time.monotonic() - start)
        if done.returncode:
            (*_, unit) = ["", *done.stdout.splitlines()]
            (*_, refusal) = [f"status {done.returncode}", *done.stderr.splitlines()]
            hangs = "hangs" if done.stderr.startswith("Timeout") else ""
            outcome = Outcome("failed", hangs or refusal, outcome.seconds)
            # If no unit was printed, an import failed; "none" matches no unit, so that only the imports are tested.
            right = self._run_command(
                [sys.executable, "-c", VERIFY, family, backends, unit or "none"], self._unchanged_environment
            )
            if right.returncode:
                raise RuntimeError(f"{unit} also fails with the unchanged sources: {right.stderr}")
        return outcome

    def write(self, file: str, text: str) -> None:
        """Write a source file to the checkout and to the installed package."""
        (self.checkout / file).write_text(text)
        installed = self._site / "trigraph" / file.removeprefix("src/trigraph/")
        installed.write_text(text)

    def verify_change(self, backend: str, file: str, text: str, families: Sequence[str]) -> Outcome:
        """Replace the text of one source, verify the families in order until one fails, and restore the source.

        The libraries built from the source are restored, too.
        """
        right = (ROOT / file).read_text()
        self.write(file, text)
        seconds = 0.0
        try:
            for family in families:
                outcome = self.verify(backend, family)
                seconds += outcome.seconds
                if outcome.status != "passed":
                    break
        finally:
            self.write(file, right)
            for library in (library for family in families for library in self._libraries(backend, family)):
                shutil.copy(self._installed / library, self._site / "trigraph" / library)
        return Outcome(outcome.status, outcome.refusal, seconds)
