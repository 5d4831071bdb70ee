"""Tests that reports describe the commit, device and build, even if one of them is unknown."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from trigraph import environment


@pytest.fixture
def patch_install_origin(monkeypatch):
    """Return a function that patches the package's metadata to state where it was installed from."""

    def patch_origin(origin):
        text = None if origin is None else json.dumps(origin)
        monkeypatch.setattr(environment, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))

    return patch_origin


def run_git(folder, *arguments):
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    run_git(tmp_path, "init")
    (tmp_path / "pyproject.toml").write_text("")
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_find_commit_reads_commit_of_checkout(patch_install_origin, repository):
    patch_install_origin({"url": repository.as_uri(), "dir_info": {"editable": True}})
    commit, dirty = environment.find_commit_and_dirty()
    assert len(commit) == 40
    assert not dirty
    (repository / "new.py").write_text("")
    assert environment.find_commit_and_dirty() == (commit, True)


def test_find_commit_returns_none_outside_checkouts(patch_install_origin, repository):
    (repository / "unpacked").mkdir()
    nowhere = repository.parent / "nowhere"
    for origin in (
        None,
        {"url": "https://example.org/x.whl", "archive_info": {}},
        {"url": (repository / "unpacked").as_uri(), "dir_info": {}},
        {"url": nowhere.as_uri(), "dir_info": {}},
    ):
        patch_install_origin(origin)
        assert environment.find_commit_and_dirty() is None


def test_find_commit_returns_none_without_git(patch_install_origin, repository, monkeypatch):
    patch_install_origin({"url": repository.as_uri(), "dir_info": {}})
    monkeypatch.setenv("PATH", "")
    assert environment.find_commit_and_dirty() is None


class CudaError(RuntimeError):
    pass


def raise_no_device():
    raise CudaError("no driver")


DEVICE = {"name": "Made-up GPU", "compute_capability": "9.0", "driver": 12080, "runtime": 12060}


@pytest.mark.parametrize(
    ("get_device", "expected", "reason"),
    [
        (lambda: 0, DEVICE, None),
        (raise_no_device, dict.fromkeys(DEVICE), "no CUDA device: no driver"),
        (None, dict.fromkeys(DEVICE), environment.NO_CUPY),
    ],
)
def test_device_description_states_reason_without_device(get_device, expected, reason, monkeypatch):
    runtime = SimpleNamespace(
        CUDARuntimeError=CudaError,
        getDevice=get_device,
        getDeviceProperties=lambda number: {"name": b"Made-up GPU", "major": 9, "minor": 0},
        driverGetVersion=lambda: 12080,
        runtimeGetVersion=lambda: 12060,
    )
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)) if get_device else None
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert environment.describe_cuda_device() == expected | {"reason": reason}


def test_environment_can_be_written_as_json():
    collected = environment.collect_environment()
    assert json.loads(json.dumps(collected)) == collected
    assert collected["cpu"]["model"]
    assert [state["backend"] for state in collected["backends"]][-1] == "judge"


def test_extras_list_their_missing_packages(monkeypatch):
    lines = ["numpy>=2", 'numpy>=2; extra == "ase"', "nothing-such>=1; python_version >= '3.11' and extra == 'mpi'"]
    monkeypatch.setattr(environment, "requires", lambda name: [*lines, "trigraph[ase]; extra == 'torch-sim'"])
    lacking = environment.list_missing_packages()
    assert list(lacking) == list(environment.EXTRAS)
    assert {extra: packages for extra, packages in lacking.items() if packages} == {"mpi": ["nothing-such"]}
