"""One mistake: description, expected check, and the verdicts of torch's own checks."""

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.gradcheck import GradcheckError

from slopecheck import Result, check_derivatives


class Mistake(NamedTuple):
    """A faulty function of torch tensors and its corrected version."""

    name: str
    what: str  # what is wrong, in one sentence; project and number of the public issue
    faulty: Callable[..., Any]
    repaired: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]  # of float64 or integers
    check: str = "differences"  # kind of the check that fails
    order: int = 1  # of the derivatives at which it fails

    def check_derivatives(self, function: Callable[..., Any]) -> Result:
        """Check the faulty function or the repaired one, to second order or to that of the mistake."""
        return check_derivatives(function, self.inputs, order=max(2, self.order), framework="torch", raises=False)


def own(
    function: Callable[..., Any], gradient: Callable[..., Any], zeros: bool = True, context: bool = False
) -> Callable[..., Any]:
    """Return a function of tensors with a gradient of its own.

    `gradient` takes the cotangents and the inputs, and before them autograd's `context` if that is asked for; it
    returns the gradients in these, None for integers. Cotangents that are absent are `zeros`, or else None.
    """

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> Any:
            ctx.set_materialize_grads(zeros)
            ctx.save_for_backward(*inputs)
            return function(*inputs)

        @staticmethod
        def backward(ctx: Any, *g: torch.Tensor) -> Any:
            return gradient(*[ctx] * context, *g, *ctx.saved_tensors)

    @functools.wraps(function)
    def apply(*inputs: torch.Tensor) -> Any:
        return Own.apply(*inputs)

    return apply


def of(*values: Any) -> torch.Tensor:
    """Return numbers as a tensor of float64."""
    return torch.tensor(values, dtype=torch.float64)


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


def rows(mistakes: Iterable[Mistake]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, what is wrong, the kinds of `check_derivatives` that fail, and the verdicts of torch's two checks."""
    for m in mistakes:
        failed = m.check_derivatives(m.faulty).failures
        ours = ", ".join(dict.fromkeys(f"{c.kind} {c.case}".strip() for c in failed if c.kind != "elements"))
        first, second = (
            verdict(check, m.faulty, m.inputs) for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck)
        )
        yield m.name, m.what, ours, first, second
