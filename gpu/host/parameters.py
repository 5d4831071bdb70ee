"""What every kernel instance takes, as the compiler of the CPU's version sees it; the build writes it to a file.

``python gpu/host/parameters.py parameters.json _host_gno.so ...`` writes, by family and instance, the types of the
parameters and their names. The launcher of the device checks arguments against this file, since CuPy would pass
whatever it is given.
"""

import ctypes
import json
import sys
from pathlib import Path


def describe(library: ctypes.CDLL) -> dict[str, tuple[str, str]]:
    """Return types and names of the parameters of every instance in a library made by `build`, separated by commas."""
    texts = [getattr(library, f"cuda_host_kernel_{what}") for what in ("name", "signature", "parameters")]
    for text in texts:
        text.restype = ctypes.c_char_p
    kernels = ([text(i).decode() for text in texts] for i in range(library.cuda_host_num_kernels()))
    return {name: (types, names) for name, types, names in kernels}


def _family(library: ctypes.CDLL) -> str:
    library.cuda_host_family.restype = ctypes.c_char_p
    return library.cuda_host_family().decode()


if __name__ == "__main__":
    libraries = [ctypes.CDLL(path) for path in sys.argv[2:]]
    table = {_family(library): describe(library) for library in libraries}
    Path(sys.argv[1]).write_text(json.dumps(table, indent=0), encoding="utf-8")
