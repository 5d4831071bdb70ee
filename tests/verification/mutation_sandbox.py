"""A copy of the checkout in which a mutated source is built and verified; only affected files are rebuilt.

`mutations.py` lists the mutations.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import trigraph
from trigraph.fortran.levels import get_cpu_level, list_runnable_levels

ROOT = Path(__file__).resolve().parents[2]

FRAMEWORK = "torch"  # torch implementations shared by all families, verified like a backend
BACKEND_BY_FOLDER = {
    "fortran/fast": "fortran",
    "src/trigraph/backends": "fortran",
    "fortran/reference": "fortran-reference",
    "pyref": "pyref",
    "gpu": "gpu-host",
    "src/trigraph/torch": FRAMEWORK,
}

# Run `trigraph verify --operator FAMILY --backend BACKEND ...`, fast units first, and stop at the first failed check or
# hanging unit. Print each unit before it starts, and the failure. A label selects a single unit.
VERIFY = """
import faulthandler, resource, sys
from trigraph.verification.run import plan_run
from slopecheck.units import count_checks_for_plan, execute_units

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
        ((_, found),) = execute_units([unit])
        failed = [c for c in found if c.failed]
        for check in failed[:1]:
            sys.exit(f"{check.kind}: {check.operator}, {check.case}, {check.dtype}: {check.backend} {check.field}")
        if count_checks_for_plan(found) != unit.planned():
            sys.exit(f"{unit.label}: {count_checks_for_plan(found)} checks were made; {unit.planned()} were planned")
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


def find_backend_of_source(file: str) -> str:
    """Return the backend that uses a source file."""
    return next(backend for folder, backend in BACKEND_BY_FOLDER.items() if file.startswith(f"{folder}/"))


class Sandbox:
    """A copy of the checkout with its own build folder and installed package."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._level = folder, get_cpu_level()
        self._checkout, self._build, self._site = folder / "checkout", folder / "build", folder / "site"
        self._installed = Path(trigraph.__file__).parent
        self._copy_checkout()
        self._configure_build()

    def _copy_checkout(self) -> None:
        """Copy the checkout, and the installed package with the fast-path library for this CPU only."""
        # Python uses a stale .pyc file if the source's size and modification time in seconds are unchanged.
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(self._installed, self._site / "trigraph", ignore=ignored)
        for level in list_runnable_levels():
            if level != self._level:  # the libraries of other levels are not rebuilt
                fortran = (self._site / "trigraph" / self._get_fast_library_path(level)).parent
                for file in (*fortran.glob(f"_fast_{level}.*"), *fortran.glob(f"libtrigraph_{level}.*")):
                    file.unlink()
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(lambda name: name and (ROOT / name).is_file(), listed.split("\0")):
            copy, installed = self._checkout / name, self._get_installed_path(name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
            if installed.is_file() and installed.read_bytes() != copy.read_bytes():
                raise RuntimeError(f"{name} differs from what is installed; `make .venv/installed` installs it")

    def _configure_build(self) -> None:
        """Configure meson with a wrapper of fypp that does not rewrite unchanged output."""
        search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        wrapper = self._folder / "bin" / "fypp"
        wrapper.parent.mkdir()
        wrapper.write_text(FYPP.format(python=sys.executable, fypp=shutil.which("fypp", path=search)))
        wrapper.chmod(0o755)
        self._unchanged_environment = {
            k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRIGRAPH_CPU_LEVEL")
        }
        self._environment = {
            **self._unchanged_environment,
            "PATH": os.pathsep.join([str(wrapper.parent), search]),
            "PYTHONPATH": str(self._site),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        options = ["-Dcpu_levels=native,v3", "-Dgpu_host=true"]
        self._run_build_tool("meson", "setup", *options, str(self._build), str(self._checkout))

    def _run_command(self, command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, errors="replace", check=False
        )

    def _run_build_tool(self, *command: str) -> None:
        done = self._run_command([*command], self._environment)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def _get_installed_path(self, name: str) -> Path:
        """Return the path of a source file in the installed package."""
        return self._site / "trigraph" / name.removeprefix("src/trigraph/")

    @staticmethod
    def _get_fast_library_path(level: str) -> str:
        return f"fortran/libtrigraph_{level}.so"

    def _list_libraries(self, backend: str, family: str) -> list[str]:
        """Return the libraries that determine the results of a family in a backend."""
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        return {
            "fortran": [self._get_fast_library_path(self._level)],
            "fortran-reference": [f"fortran/{name}{suffix}" for name in ("_reference", "_judge")],
            "gpu-host": [f"gpu/_host_{family}{suffix}"],
        }.get(backend, [])

    def verify_family(self, backend: str, family: str) -> str:
        """Build and verify a family in a backend; return the failure, or "" if all checks pass.

        For the reference, all backends are verified, since the judge is built from it.

        Raises RuntimeError if the build fails, or if the failing unit also fails with the original sources.
        """
        libraries = self._list_libraries(backend, family)
        if libraries:
            self._run_build_tool("ninja", "-C", str(self._build), *libraries)
        for library in libraries:
            shutil.copy(self._build / library, self._site / "trigraph" / library)
        others = {*BACKEND_BY_FOLDER.values()} - {FRAMEWORK}
        backends = " ".join([*others, "judge"]) if backend == "fortran-reference" else backend
        command = [sys.executable, "-c", VERIFY, family, backends]
        done = self._run_command([*command, ""], self._environment)
        if done.returncode == 0:
            return ""
        # If no unit was printed, an import failed; "none" matches no unit, so that only the imports are tested.
        (*_, unit) = ["none", *done.stdout.splitlines()]
        right = self._run_command([*command, unit], self._unchanged_environment)
        if right.returncode:
            raise RuntimeError(f"{unit} also fails with the unchanged sources: {right.stderr}")
        (*_, failure) = [f"status {done.returncode}", *done.stderr.splitlines()]
        return "hangs" if done.stderr.startswith("Timeout") else failure

    def verify_changed_source(self, file: str, text: str, family: str) -> str:
        """Replace the text of one source, verify a family, and restore the source and the libraries built from it."""
        backend = find_backend_of_source(file)
        places = self._checkout / file, self._get_installed_path(file)
        try:
            for place in places:
                place.write_text(text)
            return self.verify_family(backend, family)
        finally:
            for place in places:
                shutil.copy(ROOT / file, place)
            for library in self._list_libraries(backend, family):
                shutil.copy(self._installed / library, self._site / "trigraph" / library)
