"""Compile every kernel instance with NVRTC for every supported architecture, and compare its resources with a budget.

This requires no GPU and no driver, only the packages cuda-core, nvidia-cuda-nvrtc and nvidia-cuda-runtime::

    python -m trigraph.gpu.budgets             # compare with gpu/budgets.json; exit status 1 if a kernel exceeds it
    python -m trigraph.gpu.budgets --update    # write gpu/budgets.json
    python -m trigraph.gpu.budgets --raise --nvrtc DIR/libnvrtc.so.13    # allow for another version of the compiler

Registers are budgeted in steps of 8, the unit in which a device allocates them, so that compiler versions may differ
within a step. Stack, spills, barriers and static shared memory are exact. The file has a line for each instance, with a
list for each architecture: the fields of `Usage` in order. A kernel that spills needs a text under ``spill_reason`` in
the file, which ``--update`` keeps.
"""

import argparse
import ctypes
import io
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trigraph.gpu.instances import INSTANCES
from trigraph.gpu.sources import expand_includes

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
KERNELS = Path(__file__).resolve().parent / "kernels"
BUDGETS = Path(__file__).resolve().parent / "budgets.json"

# The launcher's options, and one that CuPy adds.
OPTIONS = {"std": "c++17", "ftz": False, "device_as_default_execution_space": True}

_REGISTER_STEP = 8


class Usage(NamedTuple):
    """Resources of a kernel: numbers of registers and barriers, the rest in bytes."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    barriers: int
    shared: int


def compile_kernels(source: Path, instances: Iterable[str], architecture: str) -> dict[str, Usage]:
    """Compile a ``.cu`` file for an architecture (``"sm_90"``) and return the usage of each instance.

    Instances are name expressions, such as ``gno_hidden<float>``. If NVRTC rejects the source, cuda.core raises an
    exception with its log.
    """
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(name=source.name, arch=architecture, ptxas_options="-v", **OPTIONS)
    log = io.StringIO()
    program = Program(expand_includes(source.resolve(), source.resolve().parent.parent, {}), "c++", options)
    code = program.compile("cubin", name_expressions=tuple(instances), logs=log)
    symbols = {name: bytes(symbol).decode() for name, symbol in code.symbol_mapping.items()}
    usage = parse_log(log.getvalue())
    return {name: usage[symbol] for name, symbol in symbols.items()}


def parse_log(log: str) -> dict[str, Usage]:
    """Return the usage of each entry function, by its mangled name, from the log of ``ptxas -v``."""
    usage: dict[str, Usage] = {}
    memory: dict[str, tuple[int, int, int]] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            entry = match[1]
        elif match := re.search(r"Function properties for (\S+)", line):
            function = match[1]
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            memory[function] = int(match[1]), int(match[2]), int(match[3])
        elif match := re.search(r"Used (\d+) registers", line):
            barriers = re.search(r"used (\d+) barriers", line)
            shared = re.search(r"(\d+) bytes smem", line)
            usage[entry] = Usage(
                int(match[1]), *memory[entry], int(barriers[1]) if barriers else 0, int(shared[1]) if shared else 0
            )
    return usage


def compare(family: str, architecture: str, measured: Mapping[str, Usage], budgets: Mapping[str, Any]) -> list[str]:
    """Return a line for each problem of a family's kernels on one architecture."""
    problems = []
    for name, usage in measured.items():
        where = f"{family}: {name} on {architecture}"
        entry = budgets.get(family, {}).get(name, {})
        if architecture not in entry:
            problems.append(f"{where} has no budget")
            continue
        problems += [
            f"{where} uses {amount} ({what}), budget {budget}"
            for what, amount, budget in zip(Usage._fields, usage, entry[architecture], strict=True)
            if amount > budget
        ]
        if usage.spill_stores + usage.spill_loads > 0 and not entry.get("spill_reason"):
            problems.append(f"{where} spills registers and the budget gives no spill_reason")
    return problems


def read_budgets() -> dict[str, Any]:
    """Return gpu/budgets.json: family -> instance -> architecture -> budget, a `Usage`; and ``spill_reason``."""
    return {
        family: {
            name: {key: value if key == "spill_reason" else Usage(*value) for key, value in entry.items()}
            for name, entry in kernels.items()
        }
        for family, kernels in json.loads(BUDGETS.read_text(encoding="utf-8")).items()
    }


def make_budgets(
    measured: Mapping[str, Mapping[str, Mapping[str, Usage]]], previous: Mapping[str, Any], raised: bool = False
) -> dict[str, Any]:
    """Return budgets from measurements (family -> architecture -> instance), keeping the reasons of spills.

    If `raised`, larger previous amounts stay.
    """
    budgets: dict[str, Any] = {}
    for family, architectures in measured.items():
        for architecture, kernels in architectures.items():
            for name, usage in kernels.items():
                entry = budgets.setdefault(family, {}).setdefault(name, {})
                registers = -(-usage.registers // _REGISTER_STEP) * _REGISTER_STEP
                entry[architecture] = usage._replace(registers=registers)
                if raised and (before := previous.get(family, {}).get(name, {}).get(architecture)):
                    entry[architecture] = Usage(*map(max, entry[architecture], before))
        for name, entry in budgets.get(family, {}).items():
            reason = previous.get(family, {}).get(name, {}).get("spill_reason")
            if reason:
                entry["spill_reason"] = reason
    return budgets


def format_budgets(budgets: Mapping[str, Any]) -> str:
    """Return the JSON text with a line for each instance, for readable diffs."""
    families = {
        family: ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in kernels.items())
        for family, kernels in budgets.items()
    }
    text = ",\n".join(f"  {json.dumps(family)}: {{\n{lines}\n  }}" for family, lines in families.items())
    return f"{{\n{text}\n}}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line described at the top of this file."""
    parser = argparse.ArgumentParser(description="Compile all kernels with NVRTC and compare them with their budgets.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--update", action="store_true", help="write budgets.json")
    mode.add_argument("--raise", dest="raised", action="store_true", help="raise the budgets that are too small")
    parser.add_argument("--nvrtc", help="a libnvrtc.so.13 to compile with (default: that of nvidia-cuda-nvrtc)")
    options = parser.parse_args(arguments)
    if options.nvrtc:
        ctypes.CDLL(options.nvrtc)  # cuda-bindings uses the library that is already loaded
    measured = {
        family: {arch: compile_kernels(KERNELS / f"{family}.cu", instances, arch) for arch in ARCHITECTURES}
        for family, instances in INSTANCES.items()
    }
    budgets = read_budgets()
    if options.update or options.raised:
        budgets = make_budgets(measured, budgets, options.raised)
        BUDGETS.write_text(format_budgets(budgets), encoding="utf-8")
    problems = [
        problem
        for family, architectures in measured.items()
        for arch, kernels in architectures.items()
        for problem in compare(family, arch, kernels, budgets)
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{sum(map(len, INSTANCES.values()))} kernels, {len(ARCHITECTURES)} architectures: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
