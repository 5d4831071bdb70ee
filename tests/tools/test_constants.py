"""The page of constants: its values are those of the sources, and every constant has a row."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "constants.md").read_text()
FAST, KERNELS = re.findall(r"^## The [^\n]*\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+?) \| `([\w./]+)` \|", re.MULTILINE)
ROWS = [(f"fortran/fast/{file}", name, value) for name, value, file in ROW.findall(FAST)]
ROWS += [(f"gpu/{file}", name, value) for name, value, file in ROW.findall(KERNELS)]
SOURCES = [*(ROOT / "fortran/fast").iterdir(), *(ROOT / "gpu/kernels").iterdir(), *(ROOT / "gpu").glob("*.py")]

# Lines that define constants, by the end of a file's name.
LINES = {
    ".fypp": r"^\s*(?:integer|real)[^\n]*, parameter :: ([^!\n]*)|^#:set ([A-Z_]+ = \d+)$|^#define (\w+ \d+)",
    ".cu": r"^constexpr int ([^;]*);",
    ".py": r"^([A-Z][A-Z_]* = [^#\n]*)",
}
LINES |= {".inc": LINES[".fypp"], ".cuh": LINES[".cu"]}

# Names of choices and states, which have no reason but to differ; numbers of mathematics and of formats.
UNEXPLAINED = re.compile(
    r"act_\w+|op_\w+|by_weight|exclude_\w+|peak|total|mean_\w+|sum_draw\w*|num_sums|pi|log2|linear|direct\w*|VALUES|DIRECTIONS|SECOND"
)

# Constants of the Python side that are those of a kernel: file and name, file and expression.
SAME = {
    ("gpu/dimenet.py", "DEGREES"): ("dimenet_triplets.cuh", "DEGREES"),
    ("gpu/dimenet.py", "PAD"): ("dimenet_triplets.cuh", "PAD"),
    ("gpu/dimenet.py", "PROJECTED"): ("dimenet.cu", "PROJECTED"),
    ("gpu/dimenet.py", "THREADS"): ("dimenet_triplets.cuh", "THREADS"),
    ("gpu/gemnet.py", "MOST_IN_ORDER"): ("gemnet.cu", "(1 << run_bits) * triplets_at_a_time"),
    ("gpu/rows.py", "THREADS"): ("rows.cuh", "row_threads"),
    ("gpu/units.py", "SIDE"): ("products.cuh", "product_side"),
    ("gpu/sums.py", "ROWS"): ("dimenet_triplets.cuh", "CHUNK"),  # edges of a block of dimenet_weights_parts
    ("gpu/sums.py", "MATRIX_THREADS"): ("matrices.cuh", "matrix_threads"),
    ("gpu/sums.py", "MATRIX_ROWS"): ("matrices.cuh", "matrix_rows"),
    ("src/trigraph/graphs/base.py", "PART_SIZE"): ("sums.cuh", "PART_SIZE"),
}


def constants(path):
    """Return the names that a source gives to numbers, with the numbers as they are written."""
    found = {}
    if path.suffix in LINES:
        for match in re.finditer(LINES[path.suffix], path.read_text(), re.MULTILINE):
            for name, value in re.findall(r"(\w+) =? ?([^,]+)", next(filter(None, match.groups()))):
                found.setdefault(name, []).append(value.strip().replace("2_i64", "2"))
    return found


@pytest.mark.parametrize(("file", "name", "value"), ROWS)
def test_values_are_those_of_the_sources(file, name, value):
    written = [v.removesuffix("_${K}$") for v in constants(ROOT / file)[name]]
    assert set(written) == {value}


def test_every_constant_has_a_row():
    there = {(file, name) for file, name, _ in ROWS}
    assert len(there) == len(ROWS) > 60
    missing = [
        (str(path.relative_to(ROOT)), name, values)
        for path in sorted(SOURCES)
        for name, values in constants(path).items()
        if any(re.fullmatch(r"[\d.e]+(_\w+)?( ?(\*\*|<<|\*) ?\d+)*", value) for value in values)
        and (str(path.relative_to(ROOT)), name) not in there
        and (str(path.relative_to(ROOT)), name) not in SAME
        and not UNEXPLAINED.fullmatch(name)
    ]
    assert missing == []


@pytest.mark.parametrize(("file", "name"), SAME)
def test_python_and_kernels_agree(file, name):
    module = importlib.import_module(
        "trigraph." + file.removeprefix("src/trigraph/").removesuffix(".py").replace("/", ".")
    )
    kernel, expression = SAME[file, name]
    numbers = {n: v[0] for n, v in constants(ROOT / "gpu/kernels" / kernel).items()}
    for known in re.findall("[A-Za-z_]+", expression):
        expression = expression.replace(known, numbers[known])
    assert getattr(module, name) == eval(expression)
