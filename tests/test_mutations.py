"""A deliberately wrong line in any panel makes `trigraph verify` fail (slow: each one is built and verified)."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What is wrong, in which file, the right text and the wrong one. A text stands there once.
MUTATIONS = {
    "reference: bias left out": ("fortran/gno.fypp", "    kernel(i, e) = b_v(i)", "    kernel(i, e) = 0"),
    "reference: missing sum of the bias": (
        "fortran/gno.fypp",
        "gb_v(i) = gb_v(i) + grad_kernel(i, e)",
        "gb_v(i) = grad_kernel(i, e)",
    ),
    "reference: wrong offset of b_v": (
        "fortran/gno.fypp",
        "off_bv = off_v + f*hidden",
        "off_bv = off_v + f*hidden - 1",
    ),
    "reference: kernel for its cotangent": (
        "fortran/gno.fypp",
        "call add_features_grad_${K}$(f_in, f_out, gg_kernel(:, e), grad_message(:, i), out_features(:, j))",
        "call add_features_grad_${K}$(f_in, f_out, kernel(:, e), grad_message(:, i), out_features(:, j))",
    ),
    "pyref: >= for > in relu'": ("pyref/gno.py", "mask = ~(z <= 0)", "mask = ~(z < 0)"),
    "pyref: sign of a second-order term": (
        "pyref/gno.py",
        "coords=lambda: s @ Ugg + sgg @ U,",
        "coords=lambda: s @ Ugg - sgg @ U,",
    ),
    "pyref: transposed kernel": (
        "pyref/gno.py",
        "return kernel.reshape(len(kernel), f_in, f_out)",
        "return kernel.reshape(len(kernel), f_out, f_in).swapaxes(1, 2)",
    ),
    "pyref: shared rows overwrite": ("pyref/gno.py", "np.add.at(out, index, rows)", "out[index] = rows"),
    "fast: >= for > in relu'": (
        "fortran/gno_fast.fypp",
        "s(:z%hidden, q) = merge(0.0_${K}$, s(:z%hidden, q), a(:z%hidden, q) <= 0)",
        "s(:z%hidden, q) = merge(0.0_${K}$, s(:z%hidden, q), a(:z%hidden, q) < 0)",
    ),
    "fast: second-order term replaces the first": (
        "fortran/gno_fast.fypp",
        "if (want_coords) call gemm_packed_${K}$(z%d, n, z%hidden, ut2, w%s, z%ls, coords, z%d, .true.)",
        "if (want_coords) call gemm_packed_${K}$(z%d, n, z%hidden, ut2, w%s, z%ls, coords, z%d, .false.)",
    ),
    "gpu: >= for > in relu'": (
        "gpu/kernels/gno.cu",
        "return !(z(row, k) <= T(0));",
        "return !(z(row, k) < T(0));",
    ),
    "gpu: sign of g h^T": (
        "gpu/kernels/gno.cu",
        "sum[r].add(left[o[r]] * right[f[r]], e);",
        "sum[r].add(-left[o[r]] * right[f[r]], e);",
    ),
    "gpu: position for row": (
        "gpu/kernels/gno.cu",
        "matrices + (long long)(edge_ids[p]) * num_y * num_x",
        "matrices + (long long)(p) * num_y * num_x",
    ),
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A copy of the checkout, and an environment that has this one's packages but its own build of trigraph."""
    folder = tmp_path_factory.mktemp("mutations")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / "checkout" / name)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def build_and_verify(folder):
    binaries = folder / "venv" / "bin"
    path = os.pathsep.join([str(binaries), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    build = f"-Cbuild-dir={folder / 'build'}"
    install = [binaries / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", build, "."]
    built = subprocess.run(
        install, cwd=folder / "checkout", env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    verify = [binaries / "python", "-m", "trigraph", "verify", "--operator", "gno"]
    return subprocess.run(verify, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_right_lines_pass(sandbox):
    done = build_and_verify(sandbox)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_line_is_found(sandbox, name):
    file, right, wrong = MUTATIONS[name]
    path = sandbox / "checkout" / file
    text = path.read_text()
    assert text.count(right) == 1, f"{file} has {text.count(right)} of: {right}"
    path.write_text(text.replace(right, wrong))
    try:
        done = build_and_verify(sandbox)
    finally:
        path.write_text(text)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr
    print(f"\n{name}: {done.stdout.strip().splitlines()[-1]}")
