"""A table entry for one mistake: description, expected check, and the verdicts of torch's own checks."""

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
    what: str  # the mistake in one sentence, with the project and number of the public issue
    faulty: Callable[..., Any]
    repaired: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]  # tensors of float64 or of integers
    check: str = "differences"  # kind of check that fails
    order: int = 1  # order of the derivatives for which it fails

    def check_derivatives(self, function: Callable[..., Any]) -> Result:
        """Check the faulty or the repaired function, at least to second order."""
        return check_derivatives(function, self.inputs, order=max(2, self.order), framework="torch", raises=False)


def attach_gradient(
    function: Callable[..., Any], gradient: Callable[..., Any], zeros: bool = True, context: bool = False
) -> Callable[..., Any]:
    """Return a function of tensors with a custom gradient.

    `gradient` receives the cotangents and the inputs, after autograd's context if `context` is True, and returns the
    gradients of the inputs (None for integers). Absent cotangents are zeros if `zeros` is True, else None.
    """

    class CustomGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: torch.Tensor) -> Any:
            ctx.set_materialize_grads(zeros)
            ctx.save_for_backward(*inputs)
            return function(*inputs)

        @staticmethod
        def backward(ctx: Any, *g: torch.Tensor) -> Any:
            return gradient(*[ctx] * context, *g, *ctx.saved_tensors)

    @functools.wraps(function)
    def apply_custom_gradient(*inputs: torch.Tensor) -> Any:
        return CustomGradient.apply(*inputs)

    return apply_custom_gradient


def make_tensor(*values: Any) -> torch.Tensor:
    """Return numbers as a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def draw_normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normally distributed float64 numbers that depend only on the shape and the seed."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def find_torch_verdict(check: Callable[..., Any], function: Callable[..., Any], inputs: Iterable[Any]) -> str:
    """Return the verdict of torch's `gradcheck` or `gradgradcheck` on a function, with default settings.

    The verdict is "finds it", "**passes it**", or the error that the function or autograd raised.
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


def yield_mistake_verdicts(mistakes: Iterable[Mistake]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the name, the mistake, the failing kinds of `check_derivatives`, and the verdicts of torch's two checks."""
    for m in mistakes:
        failed = m.check_derivatives(m.faulty).failures
        ours = ", ".join(dict.fromkeys(f"{c.kind} {c.case}".strip() for c in failed if c.kind != "elements"))
        first, second = (
            find_torch_verdict(check, m.faulty, m.inputs)
            for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck)
        )
        yield m.name, m.what, ours, first, second
