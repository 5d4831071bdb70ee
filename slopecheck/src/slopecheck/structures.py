"""Structure files that a command line names."""

import re
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

from slopecheck.outcome import describe_exception


def _split_file_and_frame(name: str) -> tuple[Path, int]:
    """Split ``file@frame`` into file and frame number; the last frame if a file has the whole name.

    Raises ValueError if the file does not exist or the frame is not an integer.
    """
    if Path(name).is_file():
        return Path(name), -1
    file, at, frame = name.rpartition("@")
    path = Path(file if at else name)
    if not path.is_file():
        raise ValueError(f"structure {path} is not a file")
    if not re.fullmatch(r"[-+]?\d+", frame):
        raise ValueError(f"structure {name}: frame is {frame!r}; expected one number, 0 the first, -1 the last")
    return path, int(frame)


def read_atoms(name: str | Path) -> Any:
    """Read the atoms of a structure file, or of a frame of a trajectory, in any format that ASE reads.

    The name is ``file`` (the last frame) or ``file@frame``. Raises ValueError if ASE is not installed or the file
    cannot be read.
    """
    try:
        from ase.io import iread
    except ImportError:
        raise ValueError("structure files need ASE: pip install ase") from None
    path, frame = _split_file_and_frame(str(name))
    try:
        # Read frames one after another, because ASE's readers differ in their treatment of an index out of range.
        frames = iread(str(path), index=":", do_not_split_by_at_sign=True)
        chosen = list(islice(frames, frame, frame + 1)) if frame >= 0 else list(deque(frames, -frame))
    except Exception as error:  # the readers of ASE's many formats raise various exceptions
        problem = describe_exception(error).replace(str(path), "").strip(": ")  # some messages contain the file name
        raise ValueError(f"structure {path} cannot be read: {problem}") from error
    if len(chosen) < max(1, -frame):
        raise ValueError(f"structure {path} has no frame {frame}; 0 is the first, -1 the last")
    return chosen[0]
