"""The environment of a result: versions, system and processor."""

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "rich", "click", "matplotlib", "jinja2", "torch", "jax", "ase")


def cpu_model() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def find_package_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def collect_versions(packages: Iterable[str]) -> dict[str, Any]:
    """Return the versions of Python, of the system and of packages."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}".rstrip(", "),
        "packages": {name: find_package_version(name) for name in packages},
    }


def collect_environment() -> dict[str, Any]:
    """Return the environment as a report stores it, ready for JSON."""
    return {
        "slopecheck": {"version": find_package_version("slopecheck")},
        **collect_versions(PACKAGES),
        "cpu": {"model": cpu_model()},
    }
