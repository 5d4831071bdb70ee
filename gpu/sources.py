"""The text of a kernel file with its includes expanded, for NVRTC and the host compiler.

This module uses only the standard library, because the build runs it before the package exists.
"""

import os
import re
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)".*$', re.MULTILINE)


class SourceError(ValueError):
    """A kernel source that cannot be rewritten."""


def expand_includes(path: Path, root: Path, seen: dict[Path, str], generated: Path | None = None) -> str:
    """Return the text of a source in which the included file replaces each ``#include "..."`` line at its first use.

    `seen` collects the text of all files in order of first use. ``#line`` preserves file names (relative to `root`) and
    line numbers. A file that is not next to the including one is looked up in `generated`, the build's output folder.
    """
    text = path.read_text(encoding="utf-8")
    seen[path] = text
    name = os.path.relpath(path, root).replace(os.sep, "/")

    def replace_include(match: re.Match[str]) -> str:
        included = (path.parent / match.group(1)).resolve()
        if generated is not None and not included.is_file():
            included = (generated / match.group(1)).resolve()
        line = body.count("\n", 0, match.start()) + 1
        if included in seen:
            return ""
        if not included.is_file():
            raise SourceError(f'{name}:{line}: cannot find "{match.group(1)}"')
        return f'{expand_includes(included, root, seen, generated)}\n#line {line + 1} "{name}"'.removesuffix("\n")

    body = re.sub(r"^[ \t]*#[ \t]*pragma[ \t]+once\b.*$", "", text, flags=re.MULTILINE)
    return f'#line 1 "{name}"\n' + _INCLUDE.sub(replace_include, body)
