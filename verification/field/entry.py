"""What is known of one mistake, and what torch's own checks say of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError

from trigraph.testing import check_derivatives


@dataclass(frozen=True)
class Entry:
    """A faulty function and its repaired twin.

    Attributes
    ----------
    name : str
    source : str
        Project and number of the public issue; empty for a kind of mistake.
    what : str
        What is wrong, in one sentence.
    faulty, repaired : callable
        Functions of torch's tensors.
    inputs : callable
        Makes the inputs, tensors of float64 (or of integers), the same ones each time.
    check : str
        Kind of the check that fails.
    order : int
        Order of derivatives at which it fails.
    """

    name: str
    source: str
    what: str
    faulty: Callable[..., Any]
    repaired: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    check: str
    order: int = 1


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal deviates of float64, the same ones each time."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def verdict(check: Callable[..., Any], function: Callable[..., Any], inputs: Iterable[Any]) -> str:
    """Return what a check of torch's, `gradcheck` or `gradgradcheck`, says of a function at its defaults.

    Returns
    -------
    str
        "finds it", "**passes it**", or the error that the function itself raised, or autograd.
    """
    at = [x.clone().requires_grad_() if x.is_floating_point() else x.clone() for x in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check(function, at)
        except GradcheckError:
            return "finds it"
        except Exception as error:
            return f"raises {type(error).__name__}"
    return "**passes it**"


def rows(entries: Iterable[Entry]) -> Iterator[tuple[str, str, str, str, str]]:
    """Run `check_derivatives`, `gradcheck` and `gradgradcheck` on faulty functions.

    Yields
    ------
    name, what, ours, first, second : str
        `ours` names the checks that failed; `first` and `second` are as of `verdict`.
    """
    for e in entries:
        failed = check_derivatives(e.faulty, e.inputs(), framework="torch", raises=False).failures
        ours = ", ".join(dict.fromkeys(f"{c.kind} {c.case}".strip() for c in failed if c.kind != "elements"))
        first, second = (
            verdict(check, e.faulty, e.inputs()) for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck)
        )
        source = f" ({e.source})" if e.source else ""
        yield e.name, f"{e.what}{source}", ours, first, second
