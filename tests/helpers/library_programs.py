"""Helpers for tests of the library `libtrigraph`: its functions, and Fortran programs that call it."""

import ctypes
import os
import shutil

from click.testing import CliRunner
from programs import run_command

from trigraph import cli


def read_trigraph_config(*names):
    """Return the output of `trigraph config`, split into words."""
    done = CliRunner().invoke(cli.main, ["config", *names])
    assert done.exit_code == 0, done.output
    return done.output.split()


def array_pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def compile_and_run_fortran(folder, source):
    """Compile a Fortran program with the installed library, using pkg-config; return its output."""
    path = folder / "program.f90"
    path.write_text(source)
    flags = read_trigraph_config("--include", "--libs")
    if shutil.which("pkg-config"):
        places = {**os.environ, "PKG_CONFIG_PATH": read_trigraph_config("--pkgconfigdir")[0]}
        flags = run_command("pkg-config", "--cflags", "--libs", "trigraph", env=places).stdout.split()
    run_command("gfortran", "-fcheck=all", "-O0", f"-J{folder}", path, *flags, "-o", path.with_suffix(""))
    return run_command(path.with_suffix("")).stdout
