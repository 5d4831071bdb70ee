"""Tests of checks of users' operators: `trigraph.verify`, forward functions in torch and JAX, pytest fixtures."""

import sys
from pathlib import Path

import numpy as np
import pytest
from expect_error import expect_error
from programs import run_command

import trigraph
from trigraph.testing import OperatorError

torch = pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))
pytest_plugins = ["pytester"]
TORCH_SETTINGS = {"framework": "torch", "dtypes": ["float64"]}
WEIGHTED_SUM_SETTINGS = {**TORCH_SETTINGS, "operator": "agg_weighted_n2n", "where": ["op=sum", "edge_weight=given"]}


@pytest.fixture
def torch_forwards_module():
    pytest.importorskip("torch_geometric")
    import torch_forwards

    return torch_forwards


def test_correct_forward_passes_in_all_orders(torch_forwards_module):
    result = trigraph.verify(torch_forwards_module.weighted_sum, **WEIGHTED_SUM_SETTINGS)
    assert result.passed
    assert {c.operator for c in result.checks} == {f"agg_weighted_n2n_{order}" for order in ("fwd", "bwd", "bwd2")}
    kinds = {c.kind for c in result.checks}
    assert {"accuracy", "differences", "adjoint", "symmetry", "repeat", "nan", "permutation"} <= kinds


def test_forward_hidden_from_autograd_fails_in_bwd(torch_forwards_module):
    """If a function hides an input from autograd, the error names the order and field, and only fwd passes."""
    with pytest.raises(OperatorError, match=r"agg_weighted_n2n_bwd: accuracy of edge_weight") as caught:
        trigraph.verify(torch_forwards_module.forgets_the_weights, **WEIGHTED_SUM_SETTINGS)
    failed = {(c.operator, c.field) for c in caught.value.result.failures if c.kind == "accuracy"}
    assert ("agg_weighted_n2n_bwd", "edge_weight") in failed
    assert not any(operator.endswith("_fwd") for operator, _ in failed)


def test_skipped_kinds_show_their_reason(torch_forwards_module):
    """Skipped kinds of checks are listed in the output with the reason."""
    where = ["activation=LeakyReLU", "concat_heads=True", "edge_embedding=None"]
    arguments = {"function": torch_forwards_module.gatconv, "operator": "mha_gat_n2n", "where": where, **TORCH_SETTINGS}
    others = ("accuracy", "differences", "adjoint", "symmetry", "repeat", "permutation")
    left_out = dict.fromkeys(others, "in the other run")
    assert {c.kind for c in trigraph.verify(**arguments, raises=False, skip=left_out).failures} == {"nan"}
    result = trigraph.verify(**arguments, skip={"nan": "index_add spreads NaN"})
    assert result.passed
    assert "nan" not in {c.kind for c in result.checks}
    assert "skipped: index_add spreads NaN" in str(result)


def test_wrong_numpy_function_fails_verify():
    import my_gno

    with pytest.raises(OperatorError, match="gno_kernel_bwd: "):
        trigraph.verify(my_gno.forgets_the_mask, "gno_kernel_bwd", dtypes=["float64"])


def embed_radial_basis(rad_basis, weight):
    return rad_basis @ weight.T


def test_correct_jax_forward_passes_verify():
    jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'trigraph[jax]'")
    with jax.enable_x64(True):
        assert trigraph.verify(embed_radial_basis, "basis_embedding_radial", framework="jax").passed


def test_verify_refuses_bad_arguments():
    with expect_error("TypeError: verify: function is a str; expected a callable"):
        trigraph.verify("f")
    with expect_error("ValueError: verify: framework is 'tf'; expected one of torch, jax"):
        trigraph.verify(embed_radial_basis, "basis_embedding_radial", framework="tf")
    with expect_error("ValueError: verify: device 'nowhere' cannot be used: ..."):
        trigraph.verify(embed_radial_basis, "basis_embedding_radial", framework="torch", device="nowhere")
    with expect_error("ValueError: verify: device is 'cpu' and framework is None; expected a framework"):
        trigraph.verify(embed_radial_basis, "basis_embedding_radial_fwd", device="cpu")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["torch_forwards:forgets_the_weights", "--framework", "torch"], 1, "edge_weight"),
        (["torch_forwards:weighted_sum", "--device", "cpu"], 2, "--device requires a --framework; none is given"),
    ],
)
def test_verify_command_fails_for_wrong_implementation_or_options(arguments, status, words, torch_forwards_module):
    command = [sys.executable, "-m", "trigraph", "verify", "--operator", "agg_weighted_n2n", "--where", "op=sum"]
    command += ["--where", "edge_weight=given", "--dtype", "float64"]
    done = run_command(*command, "--implementation", *arguments, cwd=EXAMPLES, status=status)
    assert words in done.stdout + done.stderr


TEST_PROJECT = """
import numpy as np

def embedding(rad_basis, weight):
    return rad_basis @ weight.T

def twice(rad_basis, weight):
    return 2 * (rad_basis @ weight.T)

def test_right(verify_operator, verify_derivatives):
    skip = {"golden": "an example"}
    assert verify_operator("basis_embedding_radial_fwd", embedding, dtypes=["float64"], skip=skip).passed
    verify_derivatives(np.sin, (np.ones(3),), order=1, vjp=lambda x, g: (np.cos(x[0]) * g[0],), skip={"nan": "why"})

def test_wrong_operator(verify_operator):
    verify_operator("basis_embedding_radial_fwd", twice)

def test_wrong_derivative(verify_derivatives):
    verify_derivatives(np.sin, (np.ones(3),), order=1, vjp=lambda x, g: (np.sin(x[0]) * g[0],))
"""


@pytest.mark.slow
def test_fixtures_report_failures_and_write_pages(pytester):
    """The pytest fixtures report failures without trigraph's traceback, and write pages."""
    page = (EXAMPLES.parent / "docs" / "verify-your-own.md").read_text()
    code = page.partition("## In tests with pytest")[2].partition("```python\n")[2].partition("```")[0]
    crystal, cluster = 'bulk("Cu", cubic=True)', 'Atoms("Cu2", [[0, 0, 0], [0, 0, 2.4]])'  # a pair of atoms, for speed
    assert crystal in code
    pytester.makepyfile(TEST_PROJECT, test_page="from ase import Atoms\n" + code.replace(crystal, cluster))
    run = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--verify-report", "pages")
    run.assert_outcomes(passed=3, failed=2)
    run.stdout.fnmatch_lines(
        ["twice: * checks failed; values and derivatives: *", "  basis_embedding_radial_fwd: accuracy of rad_W1*"]
    )
    run.stdout.fnmatch_lines(["sin: * checks of its derivatives failed*", "  differences (order 1, *): element*"])
    text = run.stdout.str()
    assert "Traceback" not in text
    # On CI, pytest repeats whole messages in its summary.
    before_summary = text.partition("short test summary info")[0]
    assert before_summary.count("  differences (order 1, ") == 1
    assert "trigraph/testing" not in text
    assert "slopecheck/" not in text
    pages = sorted(p.name for p in (pytester.path / "pages").iterdir())
    file = "fixtures_report_failures_and_write_pages.py"
    names = [f"{file}-test_{name}" for name in ("right-2", "right", "wrong_derivative", "wrong_operator")]
    names += [f"page.py-test_my_{name}" for name in ("activation", "potential")]
    assert pages == [f"test_{name}.{kind}" for name in names for kind in ("html", "json")]
    assert np.char.find((pytester.path / "pages" / pages[-6]).read_text(), "<pre>") > 0
