"""Test that each mutation makes `trigraph verify` fail (slow: each one is built and verified)."""

import re

import pytest
from mutation_sandbox import BACKEND_BY_FOLDER, FRAMEWORK, ROOT, Sandbox
from mutations import FAMILIES


def split_mutation(text):
    """Return the original text and the mutated text."""
    before, right, wrong, after = re.fullmatch("(.*)⟦(.*) → (.*)⟧(.*)", text, re.DOTALL).groups()
    return before + right + after, before + wrong + after


MUTATIONS = {
    f"{family}, {file}: {name}": (family, file, *split_mutation(text))
    for family, files in FAMILIES.items()
    for file, texts in files.items()
    for name, text in texts.items()
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    return Sandbox(tmp_path_factory.mktemp("mutations"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", dict.fromkeys(BACKEND_BY_FOLDER.values()))
def test_unchanged_sources_pass(sandbox, backend):
    """The original sources pass; torch is tested with a family whose third derivatives use torch's implementation."""
    assert sandbox.verify_family(backend, "gat" if backend == FRAMEWORK else "weighted") == ""


def test_each_original_line_occurs_once():
    for name, (_, file, right, wrong) in MUTATIONS.items():
        text = (ROOT / file).read_text()
        assert text.count(right) == 1, name
        assert text.replace(right, wrong) != text, name


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_verify_detects_each_mutation(sandbox, name):
    family, file, right, wrong = MUTATIONS[name]
    text = (ROOT / file).read_text().replace(right, wrong)
    failure = sandbox.verify_changed_source(file, text, family)
    assert failure
    print(f"\n{name}: {failure}")
