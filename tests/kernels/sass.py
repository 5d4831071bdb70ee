"""The machine code of kernels, shown by the disassembler of CUDA: what a compiler made of a loop, without a device."""

import importlib.metadata
import re
import subprocess
from functools import cache

from host_kernels import require

from trigraph.gpu.compile import KERNELS, OPTIONS
from trigraph.gpu.sources import expand_includes

ARCHITECTURE = "sm_90"


def disassembler():
    """Return the path of nvdisasm; without it there is nothing to test."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    found = [str(file.locate()) for file in files if file.name == "nvdisasm"]
    require(found, "nvidia-cuda-nvdisasm")
    return found[0]


@cache
def listing(family, instances, directory):
    """Return the instructions of each instance, without operands: ``["LDC", "S2R", ...]``."""
    from cuda.core import Program, ProgramOptions

    source = KERNELS / f"{family}.cu"
    text = expand_includes(source, KERNELS.parent, {})
    code = Program(text, "c++", ProgramOptions(arch=ARCHITECTURE, **OPTIONS)).compile("cubin", instances)
    cubin = directory / f"{family}.cubin"
    cubin.write_bytes(code.code)
    command = [disassembler(), "-c", str(cubin)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sections = dict(re.findall(r"\.section\s+\.text\.(\S+?),(.*?)(?=\.section|\Z)", shown, re.DOTALL))
    operation = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z][\w.]*)", re.MULTILINE)
    return {name: operation.findall(sections[bytes(symbol).decode()]) for name, symbol in code.symbol_mapping.items()}
