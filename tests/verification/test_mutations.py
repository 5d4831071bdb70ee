"""A wrong line in any backend makes `trigraph verify` fail (slow: each one is built and verified)."""

import re
import sys
from pathlib import Path

import pytest
from mutations import FAMILIES

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import mutants  # noqa: E402
from mutation_sandbox import BACKENDS, FRAMEWORK, Sandbox, backend_of, family_files  # noqa: E402


def taken_apart(text):
    """Return the right text and the wrong one."""
    before, right, wrong, after = re.fullmatch("(.*)⟦(.*) → (.*)⟧(.*)", text, re.DOTALL).groups()
    return before + right + after, before + wrong + after


MUTATIONS = {
    f"{family}, {file}: {name}": (family, file, *taken_apart(text))
    for family, files in FAMILIES.items()
    for file, texts in files.items()
    for name, text in texts.items()
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    return Sandbox(tmp_path_factory.mktemp("mutations"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_right_lines_pass(sandbox, backend):
    """The unchanged sources pass; of torch those of a family whose third derivatives need plain forms."""
    outcome = sandbox.verify(backend, "gat" if backend == FRAMEWORK else "weighted")
    assert outcome.status == "passed", outcome.why


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_right_line_stands_there_once(name):
    family, file, right, wrong = MUTATIONS[name]
    text = (ROOT / file).read_text()
    assert text.count(right) == 1
    assert text.replace(right, wrong) != text
    assert file in family_files(backend_of(file), family)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_line_is_found(sandbox, name):
    family, file, right, wrong = MUTATIONS[name]
    text = (ROOT / file).read_text().replace(right, wrong)
    outcome = sandbox.outcome(backend_of(file), file, text, [family])
    assert outcome.status == "failed", outcome.why
    print(f"\n{name}: {outcome.why}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", [*FAMILIES, mutants.SHARED])
def test_mutations_change_code_alone(family, backend):
    """Drawn mutations change one place in a source of the family and backend; a seed always draws the same."""
    group = mutants.Group(backend, family)
    drawn = group.drawn(0)
    assert drawn == group.drawn(0)
    assert len(set(drawn)) == len(drawn)
    assert {m.file for m in drawn} == set(group.files())
    for mutation in drawn[:50]:
        before, after = (ROOT / mutation.file).read_text(), mutants.mutated(mutation)
        assert before != after
        assert mutation.file.endswith(".py") or before.count("\n") == after.count("\n")


CODE = {
    "gpu/a.py": (
        'def f(a, *b, c=1):\n    """Return 1 + 2."""\n    # x + y\n    return g(*b) if not c else -a * f"{a + 1}"\n',
        {("not", ""), ("*", "+"), ("*", "/")},
    ),
    "fortran/a.fypp": (
        "#:set X = 1 + &\n    & 2\n    integer, intent(in) :: n(3)\n    !$omp simd aligned(x:64)\n"
        "    if (a .and. b(${I}$)) c%x(:) = y  ! 1 + '2'\n    d = 1.0_sp - (-2_i64)\n    e = '3 + 4'\n",
        {
            (".and.", ".or."),
            ("-", "+"),
            ("2", "3"),
            ("if (a .and. b(${I}$)) c%x(:) = y", ""),
            ("d = 1.0_sp - (-2_i64)", ""),
        },
    ),
    "gpu/kernels/a.cu": (
        "#include <a> // 1\ntemplate <int N = 3> __launch_bounds__(256) void f(T* a) {\n"
        "    const Sum<T> x = g<T, true>(*a);\n    __syncthreads();\n    x->y += !b && c < 1.5f; /* 1 < 2 */\n}\n",
        {("true", "false"), ("!", ""), ("&&", "||"), ("<", "<="), ("+=", "-="), ("x->y += !b && c < 1.5f;", ";")},
    ),
}


@pytest.mark.parametrize("file", CODE)
def test_what_can_be_drawn(monkeypatch, tmp_path, file):
    text, expected = CODE[file]
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    assert {(text[m.start : m.stop], m.new) for m in mutants.candidates(file)} == expected
