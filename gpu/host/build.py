"""Build the CPU version of a kernel file: rewrite shared arrays, add a table of instances, and compile the result.

The rewrite preserves line numbers. ``extern __shared__ T x[];`` becomes a pointer to the buffer of the launch, and
``__shared__ T x[n];`` a reference to a separate allocation; ``cuda_host.h`` emulates all other features of CUDA.
Included ``.cuh`` files are inserted and rewritten in the same way. Only the standard library is used, because meson
runs this file before anything is installed::

    python gpu/host/build.py --family gno --source-dir gpu --generate gno_host.cpp --depfile gno_host.d

Tests use `build_host_library` to build libraries for sanitizers and from other sources.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

HOST = Path(__file__).resolve().parent
# Load the module by path, because meson runs this file before the package exists.
_SOURCES = runpy.run_path(str(HOST.parent / "sources.py"))
SourceError: type[ValueError] = _SOURCES["SourceError"]
expand_includes = _SOURCES["expand_includes"]
RUNTIME_SOURCES = ("runtime.cpp", "collectives.cpp", "fiber.cpp")
FLAGS = ("-std=c++17", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unknown-pragmas")
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
# Kernels and runtime are compiled separately, because the race detector must not instrument the runtime. The race build
# preserves loops, because the detector would miss a loop converted to a memset call. Kernels for AddressSanitizer are
# not optimised, because that would take longer than running them. The debug options preserve source lines in reports:
# addr2line (binutils 2.40) loses the `#line` names of DWARF 5, and libasan (gcc 12) loses weak functions.
KERNEL_FLAGS = {
    "fast": ("-O2",),
    "asan": ("-O0", "-gdwarf-4", "-fno-weak", *SANITIZE),
    "race": ("-O1", "-gdwarf-4", "-fsanitize=thread", "-fno-tree-loop-distribute-patterns", "-fno-tree-vectorize"),
}
RUNTIME_FLAGS = {"fast": ("-O2",), "asan": ("-O1", "-gdwarf-4", *SANITIZE), "race": ("-O2", "-g", "-DCUDA_HOST_RACE")}

_SKIPPED = r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
_ALIGN = r"(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?"  # removed, because host allocations are aligned to 128 bytes
_SHARED = re.compile(
    rf"(?P<skipped>{_SKIPPED})"
    rf"|\b{_ALIGN}(?:static\s+)?(?P<dynamic>extern\s+)?__shared__\s+{_ALIGN}"
    r"(?P<type>[A-Za-z_][\w:<>\s]*?)\s*\b(?P<name>\w+)\s*(?P<extents>(?:\[[^\];]*\]\s*)*);"
    r"|(?P<left>\b__shared__\b)",
    re.DOTALL,
)
_KERNEL = re.compile(r"(?:\btemplate\s*<([^<>{};]*)>\s*)?\b__global__\b[^;{]*?\b(?!__launch_bounds__\b)(\w+)\s*(?=\()")
_STRUCT = re.compile(r"^(?:template <([^\n]*)> )?struct (\w+) \{$(.*?)^\};", re.MULTILINE | re.DOTALL)
_MEMBER = re.compile(r"^ {4}(?! )([\w:<>*, ]+?)(\w+);\s*$", re.MULTILINE)


def rewrite_shared_declarations(text: str) -> str:
    """Replace every ``__shared__`` declaration by its host form without changing line numbers."""
    count = 0

    def replace_declaration(match: re.Match[str]) -> str:
        nonlocal count
        if match["skipped"] is not None:
            return match[0]
        if match["left"] is not None:
            raise SourceError(
                f"{_format_location(text, match.start())}: a __shared__ declaration must be `__shared__ type "
                "name[extents];`, one name in each, outside of macros"
            )
        declared, name, extents = (" ".join(match[part].split()) for part in ("type", "name", "extents"))
        lines = "\n" * match[0].count("\n")
        if match["dynamic"] is not None:
            if extents.replace(" ", "") != "[]":
                raise SourceError(
                    f"{_format_location(text, match.start())}: extern __shared__ {name} must be `{name}[]`"
                )
            buffer = f'::cuda_host::get_dynamic_shared_buffer("{name}", sizeof({declared}))'
            return f"{declared}* const {name} = static_cast<{declared}*>({buffer});{lines}"
        count += 1
        array = f"{declared}{extents}"
        reference = f"{declared} (&{name}){extents}" if extents else f"{declared}& {name}"
        return f'{reference} = ::cuda_host::get_static_shared_array<{array}, {count}>("{name}");{lines}'

    return _SHARED.sub(replace_declaration, text)


def _format_location(text: str, position: int) -> str:
    """Return "file:line" for a position in the text, based on the preceding ``#line``."""
    marks = list(re.finditer(r'^#line (\d+) "([^"]*)"$', text[:position], re.MULTILINE))
    if not marks:
        return f"line {text.count(chr(10), 0, position) + 1}"
    mark = marks[-1]
    return f"{mark[2]}:{int(mark[1]) + text.count(chr(10), mark.end(), position) - 1}"


def _strip_comments(text: str) -> str:
    return re.sub(_SKIPPED, lambda match: " " if match[0].startswith("/") else match[0], text, flags=re.DOTALL)


def struct_members(text: str) -> dict[str, list[str]]:
    """Return the member names of every struct; each member must be declared on a line of its own."""
    structs = _STRUCT.findall(_strip_comments(text))
    return {name: [member for _, member in _MEMBER.findall(body)] for _, name, body in structs}


def kernel_parameters(text: str, structs: Mapping[str, Sequence[str]] = {}) -> dict[str, list[str]]:
    """Return the parameter names of every ``__global__`` function, replacing `structs` by their members."""
    parameters: dict[str, list[str]] = {}
    for _, kernel, declarations in _iterate_kernel_declarations(text):
        names: list[str] = []
        for words in (re.findall(r"\w+", declaration) for declaration in declarations):
            names += [f"{words[-1]}.{member}" for word in words for member in structs.get(word, ())] or words[-1:]
        parameters.setdefault(kernel, names)
    return parameters


def kernel_parameter_types(text: str, instances: Iterable[str]) -> dict[str, str]:
    """Return the parameter types of every instance, in the format of `KernelAdapter::signature` in ``cuda_host.h``."""
    structs = {
        name: (_list_template_parameters(head), [declared for declared, _ in _MEMBER.findall(body)])
        for head, name, body in _STRUCT.findall(_strip_comments(text))
    }
    kernels = {
        kernel: (_list_template_parameters(head), declarations)
        for head, kernel, declarations in _iterate_kernel_declarations(text)
    }

    def resolve_type(declared: str, arguments: Mapping[str, str]) -> str:
        declared = re.sub(r"\w+", lambda word: arguments.get(word[0], word[0]), declared.replace("__restrict__", ""))
        # Replace Compute<T>, the type in which kernels compute if arrays have the storage type T (gat_storage.cuh).
        declared = re.sub(r"\bCompute<(\w+)>", lambda m: "double" if m[1] == "double" else "float", declared)
        declared = " ".join(declared.split()).removesuffix(" const").replace(" *", "*")
        if not declared.endswith("*"):
            declared = declared.removeprefix("const ")
        name, _, inside = declared.removesuffix(">").partition("<")
        if name not in structs:
            return declared
        names, members = structs[name]
        inner = dict(zip(names, inside.split(", "), strict=True)) if inside else {}
        return "{" + ",".join(resolve_type(member, inner) for member in members) + "}"

    types = {}
    for instance in instances:
        kernel, _, inside = instance.removesuffix(">").partition("<")
        names, declarations = kernels[kernel]
        arguments = dict(zip(names, inside.split(", "), strict=True)) if inside else {}
        types[instance] = ",".join(resolve_type(re.sub(r"\w+\s*$", "", d), arguments) for d in declarations)
    return types


def _list_template_parameters(head: str) -> list[str]:
    return [parameter.split()[-1] for parameter in head.split(",") if parameter.split()]


def _iterate_kernel_declarations(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the template parameters, name and parameters of every ``__global__`` function."""
    code = _strip_comments(text)
    for match in _KERNEL.finditer(code):
        declarations = []
        depth, start = 0, match.end() + 1
        for position in range(match.end(), len(code)):
            character = code[position]
            depth += (character in "([{<") - (character in ")]}>")
            if (depth == 0 or (depth == 1 and character == ",")) and code[start:position].strip():
                declarations.append(code[start:position])
                start = position + 1
            if depth == 0:
                break
        yield match[1] or "", match[2], declarations


def generate_host_source(
    source: Path, family: str, instances: Iterable[str], root: Path, written: Path | None = None
) -> tuple[str, list[Path]]:
    """Return the C++ text of the host version of a ``.cu`` file, and the files from which it was made.

    The library reports the name `family`. Instances are name expressions, such as ``gno_hidden<float>``, or names of
    kernels that are not templates. File names in messages are relative to `root`; `written` is the folder of generated
    headers, unless they are next to the source.
    """
    instances = tuple(instances)
    seen: dict[Path, str] = {}
    text = expand_includes(source.resolve(), root.resolve(), seen, written)
    structs = struct_members("\n".join(seen.values()))
    parameters: dict[str, list[str]] = {}
    for content in seen.values():
        parameters.update(kernel_parameters(content, structs))
    entries = []
    for instance in instances:
        kernel = instance.split("<", 1)[0]
        if kernel not in parameters:
            raise SourceError(f"{source.name} has no __global__ function {kernel} (wanted as {instance})")
        entry = f"::cuda_host::KernelAdapter<&{instance}>"
        names = ",".join(parameters[kernel])
        entries.append(f'    {{"{instance}", "{names}", &{entry}::signature, &{entry}::run}},')
    unlisted = set(kernel_parameters(seen[source.resolve()])) - {instance.split("<", 1)[0] for instance in instances}
    if unlisted:
        raise SourceError(f"{source.name}: no instance is listed of {', '.join(sorted(unlisted))}")
    table = "\n".join(entries)
    generated = f"""\
// Generated by gpu/host/build.py from {source.name}.
#include "cuda_host.h"
{rewrite_shared_declarations(text)}
#line 1 "instances of {family}"
const char* const cuda_host::family = "{family}";
const cuda_host::Kernel cuda_host::kernels[] = {{
{table}
}};
const int cuda_host::num_kernels = {len(entries)};
"""
    return generated, list(seen)


def format_make_rule(target: Path, files: Iterable[Path]) -> str:
    """Return a make rule, which ninja also reads, that lists the files from which a target was made."""
    needed = " ".join(str(file).replace(" ", "\\ ") for file in files)
    return f"{target}: {needed}\n"


def compile_library(generated: str, library: Path, variant: str, extra_flags: Sequence[str], runtime: Path) -> None:
    """Compile generated C++ text and the runtime into a shared library. Raises RuntimeError if that fails.

    `runtime` is an object file with the runtime for this variant and these flags; it is compiled if it does not exist.
    """
    command = [*os.environ.get("CXX", "g++").split(), *FLAGS, *extra_flags, f"-I{HOST}"]
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "kernels.cpp"
        kernels.write_text(generated, encoding="utf-8")

        def compile_object(source: Path, flags: Sequence[str]) -> str:
            _run_compiler([*command, *flags, "-c", str(source), "-o", str(Path(folder) / f"{source.stem}.o")])
            return str(Path(folder) / f"{source.stem}.o")

        if not runtime.exists():
            names = (*RUNTIME_SOURCES, "race.cpp") if variant == "race" else RUNTIME_SOURCES
            objects = [compile_object(HOST / name, RUNTIME_FLAGS[variant]) for name in names]
            _link([*command, "-r", "-nostdlib"], objects, runtime)
        link_flags = SANITIZE if variant == "asan" else ()
        _link(
            [*command, *link_flags, "-shared"], [compile_object(kernels, KERNEL_FLAGS[variant]), str(runtime)], library
        )


def _link(command: Sequence[str], objects: Sequence[str], output: Path) -> None:
    """Link atomically: the output is complete or absent, even if other processes write the same file."""
    partial = output.with_name(f"{output.name}.{os.getpid()}.part")
    _run_compiler([*command, *objects, "-o", str(partial)])
    partial.replace(output)


def build_host_library(
    family: str,
    variant: str = "fast",
    source: Path | None = None,
    instances: Iterable[str] | None = None,
    extra_flags: Sequence[str] = (),
) -> Path:
    """Return a library with the CPU version of a kernel family, compiling it unless the user's cache contains it.

    The variant is ``"fast"``, ``"asan"`` or ``"race"``. The cache key is a hash of everything that determines the
    library. Tests may pass another kernel file with its instances, or additional compiler flags.
    """
    if source is None:
        source = HOST.parent / "kernels" / f"{family}.cu"
    if instances is None:
        instances = runpy.run_path(str(HOST.parent / "instances.py"))["INSTANCES"][family]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trigraph"
    generated, _ = generate_host_source(source, family, instances, source.parent.parent)
    digest = hashlib.sha256(repr((variant, extra_flags, os.environ.get("CXX"))).encode())
    for file in sorted(HOST.iterdir()):
        if file.suffix in (".h", ".cpp", ".py"):
            digest.update(file.read_bytes())
    runtime = folder / f"_host_runtime-{variant}-{digest.hexdigest()[:16]}.o"
    digest.update(repr((family, generated)).encode())
    library = folder / f"_host_{family}-{variant}-{digest.hexdigest()[:16]}.so"
    folder.mkdir(parents=True, exist_ok=True)
    with library.with_suffix(".lock").open("w") as lock:  # one process compiles the library while the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists():
            library.touch()
        else:
            compile_library(generated, library, variant, extra_flags, runtime)
            _remove_unused_libraries(folder)
    return library


def _remove_unused_libraries(folder: Path) -> None:
    """Remove files of older sources that have not been used for a week."""
    for file in folder.glob(f"_host_*-{'[0-9a-f]' * 16}.*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > 7 * 86400:
                file.unlink()


def make_sanitizer_environment() -> dict[str, str]:
    """Return the environment for a Python process that loads an asan library.

    The sanitizer must be loaded first. Python must allocate small objects with malloc, so that accesses beyond their
    ends are detected. Leaks are not reported, because the interpreter leaks many objects at exit.
    """
    compiler = os.environ.get("CXX", "g++").split()
    library = subprocess.run([*compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return {
        **os.environ,
        "LD_PRELOAD": os.path.realpath(library.stdout.strip()),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def _run_compiler(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line described in the module docstring."""
    parser = argparse.ArgumentParser(description="Build the CPU version of a kernel family.")
    parser.add_argument(
        "--family", required=True, help="the name of kernels/FAMILY.cu and of its entry in instances.py"
    )
    parser.add_argument("--source-dir", required=True, type=Path, help="the gpu folder")
    parser.add_argument("--written", type=Path, help="the folder of the headers that the build writes")
    parser.add_argument("--generate", required=True, type=Path, metavar="OUT.cpp", help="the C++ source to write")
    parser.add_argument("--depfile", type=Path, help="write a make rule with the files on which the output depends")
    options = parser.parse_args(arguments)
    instances = runpy.run_path(str(options.source_dir / "instances.py"))["INSTANCES"]
    source = options.source_dir / "kernels" / f"{options.family}.cu"
    try:
        listed = instances[options.family]
        generated, files = generate_host_source(source, options.family, listed, options.source_dir, options.written)
        options.generate.write_text(generated, encoding="utf-8")
        if options.depfile:
            options.depfile.write_text(format_make_rule(options.generate, files), encoding="utf-8")
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
