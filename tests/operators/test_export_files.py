"""Which files of an earlier export of the Fortran sources are overwritten: none of others, and no links."""

import pytest
from click.testing import CliRunner

from trigraph import cli
from trigraph.fortran import export


@pytest.fixture
def few(monkeypatch):
    """The export with three short files instead of all sources, whose templates take seconds to expand."""
    files = {"src/a.f90": "a", "src/b.f90": "b", "README.md": "read"}
    monkeypatch.setattr(export, "_contents", lambda vector_bytes, families: (files, ["src/a.f90", "src/b.f90"]))
    return files


def contents(folder):
    """All files and links below a folder, and what they hold."""
    paths = (p for p in folder.rglob("*") if p.is_symlink() or p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"link" for p in paths}


def refused_for(folder, *words):
    """Assert that the export is refused with this text and changes no file."""
    before = contents(folder.parent)
    done = CliRunner().invoke(cli.main, ["fortran", str(folder)])
    assert done.exit_code == 1
    assert f"Error: {folder} has {', '.join(words)}; expected a new or empty folder, or files that" in done.output
    assert contents(folder.parent) == before


def test_files_of_others_are_not_written_over(few, tmp_path):
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "README.md").write_text("mine")
    refused_for(folder, "README.md", "src")
    (folder / "README.md").unlink()
    (folder / "src").rmdir()
    assert [p.name for p in export.write(folder, 16)] == ["a.f90", "b.f90"]
    (folder / "notes").write_text("mine")
    few["src/a.f90"] = "another"
    export.write(folder, 16)
    assert (folder / "src" / "a.f90").read_text() == "another"
    (folder / "src" / "a.f90").write_text("changed")
    (folder / "README.md").write_text("changed")
    refused_for(folder, "README.md (changed since)", "src/a.f90 (changed since)")
    (folder / "README.md").unlink()
    (folder / "src" / "a.f90").unlink()
    few["fpm.toml"] = "new"
    del few["src/b.f90"]  # a source of another version, which fpm would compile
    (folder / "fpm.toml").write_text("mine")
    refused_for(folder, "fpm.toml")
    (folder / "fpm.toml").unlink()
    export.write(folder, 16)
    assert set(contents(folder)) == {".trigraph-fortran", "README.md", "fpm.toml", "notes", "src/a.f90"}


@pytest.mark.parametrize("link", ["README.md", "src", "src/a.f90", ".trigraph-fortran"])
@pytest.mark.parametrize("before", [True, False])
def test_links_are_not_followed(few, tmp_path, link, before):
    """A symbolic link in place of a folder or of a file of an earlier export is refused, not followed."""
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    if before:
        export.write(folder, 16)
        (folder / link).rename(elsewhere)
    else:
        (folder / link).parent.mkdir(parents=True)
    (folder / link).symlink_to(elsewhere)
    own = [".trigraph-fortran", "README.md", "src"] if before else [link.split("/")[0]]
    manifest = link == ".trigraph-fortran" or not before
    refused_for(folder, *own) if manifest else refused_for(folder, f"{link} (a symbolic link)")


@pytest.mark.parametrize("below", [".", "project/fortran"])
@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_folder_that_is_a_link_to_nothing_is_refused(few, tmp_path, below, target):
    link = tmp_path / "link"
    link.symlink_to(target)
    done = CliRunner().invoke(cli.main, ["fortran", str(link / below)])
    words = f"Error: {link} is a symbolic link that leads nowhere; expected a folder, or a new name\n"
    assert (done.exit_code, done.output) == (1, words)
    assert contents(tmp_path) == {"link": b"link"}


@pytest.mark.parametrize("line", ["", "no digest  README.md", f"{'0' * 64}  ../elsewhere", f"{'0' * 64}  /elsewhere"])
def test_a_damaged_manifest(few, tmp_path, line):
    folder = tmp_path / "project"
    export.write(folder, 16)
    with (folder / ".trigraph-fortran").open("a") as manifest:
        manifest.write(f"{line}\n")
    refused_for(folder, ".trigraph-fortran (not a list of digests)")


def test_an_interrupted_export_can_be_repeated(few, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    export.write(folder, 16)
    few |= {"src/a.f90": "newer", "README.md": "newer"}

    def interrupt(path, data, replace=export._replace):
        if path.name == "b.f90":
            raise KeyboardInterrupt
        replace(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(export, "_replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            export.write(folder, 16)
    assert (folder / "src" / "a.f90").read_text() == "newer"
    export.write(folder, 16)
    assert contents(folder).keys() == {".trigraph-fortran", "README.md", "src/a.f90", "src/b.f90"}
    assert (folder / "README.md").read_text() == "newer"
