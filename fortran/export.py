"""Write the library's sources for programs without Python: ``trigraph fortran DIR``.

The templates are expanded for a single vector width. The output includes the files that `interface.py` and `shims.py`
write for the package. The C interface calls the only build of the fast path, with which it is linked.
"""

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from trigraph.fortran import interface
from trigraph.table import FAMILIES

SOURCES = Path(__file__).parent
# Sources that are not templates, by folder.
PLAIN = {
    ".": ("interface.c", "cpu_level.c", "memory.c"),
    "common": ("kinds.f90",),
    "reference": ("scaled.f90", "dual.f90"),
    "athena": ("trigraph_athena_calls.c", "trigraph_athena.f90"),
}

FPM = """name = "trigraph"
version = "{version}"
license = "MIT"

[build]
auto-executables = false
auto-tests = false
auto-examples = false

[install]
library = true

[fortran]
implicit-typing = false
source-form = "free"

[dependencies]
openmp = "*"
"""

CMAKE = """cmake_minimum_required(VERSION 3.18)
project(trigraph VERSION {version} LANGUAGES C Fortran)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()
find_package(OpenMP COMPONENTS Fortran)

set(modules ${{CMAKE_CURRENT_BINARY_DIR}}/modules)
add_library(trigraph SHARED
    {sources})
add_library(trigraph::trigraph ALIAS trigraph)
set_target_properties(trigraph PROPERTIES Fortran_MODULE_DIRECTORY ${{modules}} LINKER_LANGUAGE Fortran)
target_compile_options(trigraph PRIVATE {march})
target_include_directories(trigraph PUBLIC
    $<BUILD_INTERFACE:${{CMAKE_CURRENT_SOURCE_DIR}}/include> $<BUILD_INTERFACE:${{modules}}>
    $<INSTALL_INTERFACE:${{CMAKE_INSTALL_INCLUDEDIR}}> $<INSTALL_INTERFACE:${{CMAKE_INSTALL_INCLUDEDIR}}/trigraph>)
find_package(Threads REQUIRED)
target_link_libraries(trigraph PRIVATE Threads::Threads ${{CMAKE_DL_LIBS}})
if(OpenMP_Fortran_FOUND)
    target_link_libraries(trigraph PRIVATE OpenMP::OpenMP_Fortran)
endif()

set(package ${{CMAKE_INSTALL_LIBDIR}}/cmake/trigraph)
install(TARGETS trigraph EXPORT trigraph DESTINATION ${{CMAKE_INSTALL_LIBDIR}})
install(FILES include/trigraph.h DESTINATION ${{CMAKE_INSTALL_INCLUDEDIR}})
install(DIRECTORY ${{modules}}/ DESTINATION ${{CMAKE_INSTALL_INCLUDEDIR}}/trigraph)
install(EXPORT trigraph NAMESPACE trigraph:: FILE trigraph-config.cmake DESTINATION ${{package}})
write_basic_package_version_file(trigraph-config-version.cmake COMPATIBILITY SameMinorVersion)
# Paths are relative to trigraph.pc, because `cmake --install --prefix` and a moved installation change absolute paths.
file(RELATIVE_PATH include ${{CMAKE_INSTALL_FULL_LIBDIR}}/pkgconfig ${{CMAKE_INSTALL_FULL_INCLUDEDIR}})
file(CONFIGURE OUTPUT trigraph.pc @ONLY CONTENT [[
Name: trigraph
Description: graph and geometric message-passing operators
Version: @PROJECT_VERSION@
Libs: -L${{pcfiledir}}/.. -ltrigraph
Cflags: -I${{pcfiledir}}/@include@ -I${{pcfiledir}}/@include@/trigraph
]])
install(FILES ${{CMAKE_CURRENT_BINARY_DIR}}/trigraph-config-version.cmake DESTINATION ${{package}})
install(FILES ${{CMAKE_CURRENT_BINARY_DIR}}/trigraph.pc DESTINATION ${{CMAKE_INSTALL_LIBDIR}}/pkgconfig)
"""

README = """# Fortran and C sources of trigraph {version}

`trigraph fortran` wrote these files for vector registers of {vector_bytes} bytes. They do not need Python. CMake
installs a library, modules, a header, a CMake package and `trigraph.pc` for pkg-config:

```sh
cmake -B build -DCMAKE_INSTALL_PREFIX=$HOME/trigraph && cmake --build build -j && cmake --install build
```

With fpm, run `fpm build{fpm_flags}`, or declare a dependency on this folder.

`trigraph_FAMILY_calls` contains the fast path with graph objects and optional arguments, `trigraph_FAMILY_fast` the
fast path with sizes and all arrays as arguments (OpenMP, real(sp), real(dp)), and `trigraph_FAMILY` the reference (also
real(qp)). `trigraph_choices` names the values of choices, `trigraph_graphs` builds and checks graphs, and
`trigraph_athena` has the operations of athena's graph neural operator. `include/trigraph.h` is the header for C.
"""


def _run_python(program: str, *arguments: object) -> None:
    subprocess.run([sys.executable, program, *map(str, arguments)], check=True)


def _expand_template(template: Path, out: Path, vector_bytes: int) -> None:
    """Expand a template. Lines of C are not folded, because fypp inserts Fortran's ampersands."""
    folding = ["--no-folding"] if out.suffix == ".c" else []
    where = ["-M", SOURCES, "-m", "operators", "-I", SOURCES / "common", f"-DVECTOR_BYTES={vector_bytes}"]
    _run_python("-m", "fypp", *where, *folding, template, out)


def _list_templates() -> dict[str, Path]:
    """Return the templates, keyed by the name of the expanded file."""
    templates = {f"{f}.f90": SOURCES / "reference" / f"{f}.fypp" for f in FAMILIES}
    for path in sorted((SOURCES / "fast").glob("*.fypp")):
        stem = f"{path.stem}_fast" if path.stem in FAMILIES else path.stem
        templates[stem if stem.endswith(".c") else f"{stem}.f90"] = path
    return templates | {"graphs.f90": SOURCES / "common" / "graphs.fypp"}


def generate_library_files(vector_bytes: int) -> dict[str, str]:
    """Return the contents of all files, keyed by relative path."""
    texts = {name: (SOURCES / where / name).read_text("utf-8") for where, names in PLAIN.items() for name in names}
    texts["interface.c"] = "#define ONE_LEVEL\n" + texts["interface.c"]
    with tempfile.TemporaryDirectory() as place:
        for name, template in _list_templates().items():
            _expand_template(template, Path(place, name), vector_bytes)
        for what, name in (("fast", "fast_shims.f90"), ("cases", "xla_cases.inc")):
            _run_python(str(SOURCES / "shims.py"), what, Path(place, name))
        texts |= {path.name: path.read_text("utf-8") for path in sorted(Path(place).iterdir())}
    texts |= interface.generate_interface_files(texts["graphs.f90"])
    header = texts.pop("trigraph.h")
    march = {16: "", 32: "-march=x86-64-v3", 64: "-march=x86-64-v4"}[vector_bytes]
    values = {
        "version": version("trigraph"),
        "vector_bytes": vector_bytes,
        "march": march,
        "sources": "\n    ".join(f"src/{name}" for name in sorted(texts) if not name.endswith(".inc")),
        "fpm_flags": f" --flag '{march}' --c-flag '{march}'" if march else "",
    }
    files = {f"src/{name}": text for name, text in texts.items()} | {"include/trigraph.h": header}
    return files | {
        n: t.format(**values) for n, t in (("fpm.toml", FPM), ("CMakeLists.txt", CMAKE), ("README.md", README))
    }


def write_sources(folder: Path, vector_bytes: int) -> None:
    """Write sources, C header, build files and README into a new or empty folder.

    `vector_bytes` is the width of the processor's vector registers: 64 for ``-march=x86-64-v4``, 32 for
    ``-march=x86-64-v3``, or 16 for any processor.

    Raises
    ------
    ModuleNotFoundError
        If fypp is not installed.
    FileExistsError
        If the folder contains files or is a broken symbolic link.
    """
    import fypp  # type: ignore[import-untyped]  # noqa: F401  # fails, if fypp is missing, before any file is written

    files = generate_library_files(vector_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} has files; expected a new or empty folder")
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, "utf-8")
