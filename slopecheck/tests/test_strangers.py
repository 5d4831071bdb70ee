"""Wrong functions of strangers do not pass, and right ones at hard points do not fail (all of them: slow)."""

import pytest

torch = pytest.importorskip("torch")

from field import strangers, unseen  # noqa: E402
from field.strangers import SINE, numbers, of, tables, verdict  # noqa: E402

from slopecheck import DerivativeError, check_derivatives  # noqa: E402

# Those of the kinds that no tool had found: float32 inside, hidden elements, complex numbers, kinks, what is kept.
QUICK = """sine in float32|product in float32|buffer of float32|1 beside 1e6|1 beside 1e10|complex output|complex input
magnitude at 0|norm at 0|two largest|n two largest|kept third derivative|logit|log_softmax|root 1e-14|x|x|^1.5|n zero"""


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_kinds_that_no_tool_finds(framework):
    for right, table in zip((False, True), tables(strangers, framework), strict=True):
        for name in table.keys() & set(QUICK.replace("\n", "|").split("|")):
            found, result = verdict(table[name])
            assert found != ("failed" if right else "passed"), f"{name}\n{result}"


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "numpy", "jax"])
@pytest.mark.parametrize("module", [strangers, unseen], ids=lambda m: m.__name__)
def test_all(module, framework):
    """torch's own second derivative of logaddexp is NaN for numbers far apart."""
    if framework == "jax":
        pytest.importorskip("jax").config.update("jax_enable_x64", True)
    for right, table in zip((False, True), tables(module, framework), strict=True):
        verdicts = {name: verdict(row)[0] for name, row in table.items()}
        wrong = "failed" if right else "passed"
        assert [name for name, v in verdicts.items() if v == wrong and name != "logaddexp"] == [], verdicts


@pytest.mark.parametrize(
    ("function", "x", "words"),
    [
        (strangers.WRONG["sign"][0], numbers(5), "failed: look for a sign"),
        (
            strangers.own(lambda x: x**2, lambda g, x: 2 * (g * x).T),
            numbers(3, 3),
            "failed: look for a transposed matrix",
        ),
        (lambda x: x.detach().sin() + 0 * x, numbers(5), "failed: look for what is detached"),
        (lambda x: x.abs(), of(0.0, 1.0), "failed: it is not differentiable here"),
        (lambda x: x.float().sin().double(), numbers(5), "inconclusive: compute in float64"),
        (SINE, strangers.X, "failed: what is kept must be kept by values"),
    ],
)
def test_the_first_line_says_what_to_do(function, x, words):
    with pytest.raises(DerivativeError) as error:
        check_derivatives(function, (x,), framework="torch")
    assert words.partition(": ")[2] in str(error.value).splitlines()[0], str(error.value)
    assert str(error.value.result).splitlines()[-1].startswith(words.partition(": ")[0])


def test_what_cannot_be_decided_passes_with_a_reason():
    function, x = strangers.WRONG["sine in float32"]
    keywords = {"framework": "torch", "inconclusive": "allow", "reason": "weights are in float32"}
    result = check_derivatives(function, (x,), **keywords)
    assert (result.passed, result.verdict) == (True, "passed")
    assert result.report()["skips"] == [{"what": "inconclusive checks", "reason": "weights are in float32"}]
    with pytest.raises(ValueError, match="expected a reason to allow it"):
        check_derivatives(function, (x,), framework="torch", inconclusive="allow")
    assert check_derivatives(function, (x,), framework="torch", raises=False).verdict == "inconclusive"


def test_fewer_calls():
    """A limit of calls compares fewer elements; sparse gradients are read."""
    fields = {}
    for calls in (None, 400):
        result = check_derivatives(torch.sin, (numbers(300),), calls=calls, order=1)
        fields[calls] = next(c.field for c in result.checks if c.kind == "elements")
    assert fields[None] == "input 0, 200 of 300 elements, others in groups"
    assert int(fields[400].split()[2]) < 50
    rows = torch.tensor([0, 2, 2])
    check_derivatives(lambda w: torch.nn.functional.embedding(rows, w, sparse=True).sin(), (numbers(4, 2),), order=1)
