"""One mistake: description, expected check, and the verdicts of torch's own checks."""

import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.autograd.gradcheck import GradcheckError

from slopecheck import Result, check_derivatives

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A faulty function of torch tensors and its corrected version."""

    name: str
    source: str  # project and number of the public issue; empty for a kind of mistake
    what: str  # what is wrong, in one sentence
    faulty: Callable[..., Any]
    repaired: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]  # returns the same tensors, of float64 or integers, each time
    check: str  # kind of the check that fails
    order: int  # of the derivatives at which it fails

    def check_derivatives(self, function: Callable[..., Any]) -> Result:
        """Check the faulty function or the repaired one, to second order or to that of the mistake."""
        return check_derivatives(function, self.inputs(), order=max(2, self.order), framework="torch", raises=False)


_OF_MODULES: dict[str, list[Entry]] = defaultdict(list)


def entries_of(*modules: ModuleType) -> tuple[Entry, ...]:
    """Return the entries of modules in the order of their functions."""
    return tuple(entry for module in modules for entry in _OF_MODULES[module.__name__])


def mistake(
    name: str,
    source: str,
    repaired: Callable[..., Any],
    inputs: Callable[[], tuple[Any, ...]],
    check: str = "differences",
    order: int = 1,
) -> Callable[[F], F]:
    """Make an entry of a faulty function, which it decorates and whose docstring says what is wrong."""

    def decorate(faulty: F) -> F:
        text = (faulty.__doc__ or "").removesuffix(".")
        entry = Entry(name, source, text[0].lower() + text[1:], faulty, repaired, inputs, check, order)
        _OF_MODULES[faulty.__module__].append(entry)
        return faulty

    return decorate


def with_gradient(gradient: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function of tensors with a custom gradient.

    `gradient` takes the cotangents and the inputs; it returns the gradients in these, None for integers.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        class Own(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: torch.Tensor) -> Any:
                ctx.save_for_backward(*inputs)
                return function(*inputs)

            @staticmethod
            def backward(ctx: Any, *g: torch.Tensor) -> Any:
                return gradient(*g, *ctx.saved_tensors)

        @functools.wraps(function)
        def apply(*inputs: torch.Tensor) -> Any:
            return Own.apply(*inputs)

        return apply

    return decorate


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal deviates of float64, the same ones each time."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def verdict(check: Callable[..., Any], function: Callable[..., Any], inputs: Iterable[Any]) -> str:
    """Return the verdict of torch's `gradcheck` or `gradgradcheck`, with default settings, on a function.

    It is "finds it", "**passes it**", or the error that the function or autograd raised.
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
    """Yield name, what is wrong, the kinds of `check_derivatives` that fail, and the verdicts of torch's two checks."""
    for e in entries:
        failed = e.check_derivatives(e.faulty).failures
        ours = ", ".join(dict.fromkeys(f"{c.kind} {c.case}".strip() for c in failed if c.kind != "elements"))
        first, second = (
            verdict(check, e.faulty, e.inputs()) for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck)
        )
        source = f" ({e.source})" if e.source else ""
        yield e.name, f"{e.what}{source}", ours, first, second
