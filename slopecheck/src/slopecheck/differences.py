"""Checks of derivatives by central differences, along a direction, by element, and at a second point."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from slopecheck.causes import ComponentComparison, guess_cause_in_gradient
from slopecheck.curves import BETTER, CurveVerdict, GradientClaim, estimate_noise
from slopecheck.identities import EPSILON, PARTS, IdentityChecks, mark_float32_numbers
from slopecheck.problem import Arrays, compute_rms_or_one
from slopecheck.record import Check
from slopecheck.tolerances import MARGIN, SENSITIVE, UNSURE

ELEMENTS = 200  # number of elements of each input that are compared individually
GROUPS = 40  # number of groups of the other elements; each group is compared as a whole
WORK = 2_000_000  # at most WORK / size elements of an input are compared individually; size: its number of elements
GUESSED = 12  # number of elements from which the cause of a mistake is guessed
ZOOMS = (1.0, 2.0**-14, 2.0**-28)  # scale factors of directions near the end of a domain or where a function is steep
APART = (2.0**-4, 2.0**-10, 2.0**-20)  # relative distances of a second point; the first one within the domain is used
COARSE_VALUES = 2.0**-33  # a larger relative rounding error shows that values are not computed in float64
LEAST = 2.0**-38  # an element that contributes less than this fraction of the sum of |terms| is not judged
IN_FLOAT32 = "it computes in float32, or loses as many digits: {} in float64, or skip differences with a reason"


class DifferenceChecks(IdentityChecks):
    """Checks of one function by central differences; `differences` yields the checks of one order."""

    alone_of_each, groups_of_each = ELEMENTS, GROUPS

    def count_individual_elements(self, size: int) -> int:
        """Return the number of elements of an input that are compared individually."""
        return min(size, self.alone_of_each, max(4, WORK // size))

    def check_differences(self, order: int) -> Iterator[Check]:
        """Compare gradients with central differences, along a direction and by element."""
        p = self.p
        for k, number in enumerate(self.lost if order == 1 else ()):
            if number:
                note = f"{number} of {self.y[k].size} elements change by their rounding; {BETTER}"
                yield self.make_check(1, f"output {k}", math.inf, 0.0, note, inconclusive=True)
        gradients, scale = self.compute_gradients_with_rounding(order), self.sum_term_magnitudes(order)
        if not math.isfinite(self.evaluate_weighted_sum(order, p.x)[0]):
            yield self.make_check(order, "all inputs", math.inf, 0.0, f"the {PARTS[order - 1]} are not finite")
            return
        failed = False
        for k, (x, g) in enumerate(zip(p.x, gradients, strict=True)):
            if not x.size:
                continue
            start, phi = time.perf_counter(), self._restrict_sum_to_input(order, k)
            v, sizes = (
                p.draw_direction(x, g.values),
                np.maximum(abs(x), max(compute_rms_or_one(x), 1e-3 * float(abs(x).max()))),
            )
            noise = self._estimate_noise(phi, x, v, scale)
            claim = GradientClaim(phi, g, x, noise, LEAST * scale)
            verdict = claim.compare_over_steps(v, scale, self.max_hidden_error)
            elements = self._compare_elements(order, k, claim, sizes)
            # Steps of the size of large elements may move small elements out of the domain or across a pole.
            narrow = np.where(x == 0, v, np.clip(v, -abs(x), abs(x)))
            for zoom in ZOOMS if verdict.problem else ():
                near = replace(claim, noise=self._estimate_noise(phi, x, zoom * narrow, scale))
                own = near.compare_over_steps(zoom * narrow, scale, self.max_hidden_error)
                verdict = min(verdict, own, key=lambda f: (bool(f.problem), f.inconclusive))
                if not verdict.problem or not (zoom < 1 or _needs_smaller_steps(verdict)):
                    break
            if not elements.passed:
                claim = replace(claim, noise=self._estimate_noise(phi, x, narrow, scale))
                by_value = self._compare_elements(order, k, claim, np.where(x == 0, sizes, abs(x)))
                # Prefer, in this order, a check that passed, is hidden by rounding, failed, or is undecided.
                elements = min(
                    elements, by_value, key=lambda c: (not c.passed, c.failed + 2 * (c.error > 1 and not c.failed))
                )
            if elements.failed:
                guess = _guess_gradient_cause(claim, np.where(x == 0, sizes, abs(x)))
                elements = replace(elements, note="; ".join(filter(None, [elements.note, guess])))
            note = f"{elements.note}; {verdict.note}" if elements.failed and verdict.problem else verdict.note
            coarse = claim.noise > COARSE_VALUES * scale > 0
            if coarse and not (verdict.problem or self.accuracy) and _has_staircase_values(phi, x, narrow):
                size = claim.noise / scale
                note = f"values are rounded to {size:.0e} of their size, as by float32; float64 would decide"
                verdict = replace(verdict, inconclusive=True)
            more: dict[str, Any] = {"note": note, "inconclusive": verdict.inconclusive and not elements.failed}
            more |= {"order": verdict.order, "seconds": time.perf_counter() - start, "curve": verdict.curve}
            check = self.make_check(order, self._name_input(k), verdict.best, verdict.tolerance, **more)
            yield check
            yield elements
            failed |= check.failed or elements.failed
        yield from self._report_float32_results(order)
        if not failed:
            yield from self._compare_at_second_point(order)

    def sum_term_magnitudes(self, order: int) -> float:
        """Return the sum of |terms| of the scalar functions of this order and all lower orders."""
        return sum(self.evaluate_weighted_sum(lower, self.p.x)[1] for lower in range(1, order + 1))

    @property
    def max_hidden_error(self) -> float:
        """The largest error that rounding may hide at every step of a curve."""
        return max(SENSITIVE, 100 * self.accuracy)

    def _estimate_noise(self, phi: Callable[[np.ndarray], float], x: np.ndarray, v: np.ndarray, scale: float) -> float:
        return max(estimate_noise(phi, x, v, scale), self.accuracy * scale)

    def _report_float32_results(self, order: int) -> Iterator[Check]:
        """Report results that are float32 numbers, or unaffected by input changes below the resolution of float32."""
        p, rng = self.p, np.random.default_rng(1)

        def compute_perturbed_results(relative: float) -> Arrays:
            x = [a * (1 + relative * rng.uniform(0.5, 1.0, a.shape)) for a in p.x]
            of_inputs = zip(
                p.compute_results(order, self._make_arguments(x)), map(compute_rms_or_one, p.x), strict=False
            )
            scale = LEAST * self.evaluate_weighted_sum(1, p.x)[1]
            large = [np.where(abs(a) * size > scale, a, 0.0) for a, size in of_inputs]
            return [*(p.compute_outputs(x) if order == 1 else ()), *large]

        for here, close, far, moved in zip(
            *map(compute_perturbed_results, (0.0, 2.0**-27, 2.0**-21, 2.0**-10)), strict=True
        ):
            if not here.shape == close.shape == far.shape == moved.shape:
                continue
            long = (moved != here) & (mark_float32_numbers(moved) | (moved != moved.astype(np.float32)))
            visible = np.isfinite(far) & (abs(far - here) * 2.0**-6 > MARGIN * EPSILON * abs(here))
            for marks in (mark_float32_numbers(moved)[long], (close == here)[visible]):
                if marks.size and np.mean(marks) > 0.5:
                    note = IN_FLOAT32.format("compute the derivative" if order > 1 else "compute")
                    yield self.make_check(order, "all inputs", math.inf, 0.0, note, inconclusive=True)
                    return

    def _compare_at_second_point(self, order: int) -> Iterator[Check]:
        """Check derivatives at a second point, where values cached only by shape are wrong."""
        there = self._copy_at_second_point(order)
        if there is None:
            return
        gradients, scale = there.compute_gradients_with_rounding(order), there.sum_term_magnitudes(order)
        for k, (x, g) in enumerate(zip(there.p.x, gradients, strict=True)):
            if x.size:
                phi, v = there._restrict_sum_to_input(order, k), there.p.draw_direction(x, g.values)
                v = np.where(x == 0, v, np.clip(v, -abs(x), abs(x)))
                part = GradientClaim(phi, g, x, self._estimate_noise(phi, x, v, scale)).compare_at_best_step(v)
                wrong = part.error_ratio > 1 and part.decided and UNSURE * scale < part.error < math.inf
                label, error = (
                    f"{self._name_input(k)}, at a second point",
                    part.error_ratio if wrong else min(part.error_ratio, 1.0),
                )
                problem = "wrong at this point, correct at the first one: is a result cached from an earlier call?"
                yield self.make_check(order, label, error, 1.0, problem)

    def _copy_at_second_point(self, order: int) -> "DifferenceChecks | None":
        """Return these checks at a second point, or None if no candidate has finite outputs and derivatives."""
        there, rng = copy.copy(self), np.random.default_rng(2)
        there.p = copy.copy(self.p)
        for share in APART:
            there.p.x = [
                x + share * rng.uniform(0.5, 1.0, x.shape) * np.where(x == 0, compute_rms_or_one(x), x)
                for x in self.p.x
            ]
            there.y = there.p.compute_outputs(there.p.x)
            if all(np.isfinite(a).all() for a in (*there.y, *there.compute_gradients(order))):
                return there
        return None

    def check_adjoint(self, order: int) -> Iterator[Check]:
        """Check the adjoint identities, also at a second point."""
        yield from super().check_adjoint(order)
        if there := self._copy_at_second_point(order):
            rows = IdentityChecks.check_adjoint(there, order)
            yield from (replace(row, field=f"{row.field}, at a second point") for row in rows)

    def _compare_elements(self, order: int, k: int, claim: GradientClaim, sizes: np.ndarray) -> Check:
        """Compare elements of a gradient with differences, some individually, others in groups; report the worst."""
        number = claim.x.size
        chosen, single = self.p.rng.permutation(number), self.count_individual_elements(number)
        alone, halves = chosen[:single, None], np.array_split(chosen[single:], self.groups_of_each)
        ratio, note, unsure = claim.compare_element_groups(
            sizes,
            [*alone, *(group for group in halves if group.size)],
            lambda index: f"element {list(index)}" if index else "the number",
        )
        label = f"{self._name_input(k)}, {len(alone)} of {number} elements" + ", others in groups" * (
            number > len(alone)
        )
        return self.make_check(order, label, ratio, 1.0, kind="elements", note=note, inconclusive=unsure)


def _guess_gradient_cause(claim: GradientClaim, sizes: np.ndarray) -> str:
    """Guess the cause of a wrong gradient from its first elements."""
    x, g = claim.x, claim.gradient
    number = min(x.size, GUESSED)
    units = [np.eye(1, x.size, n).reshape(x.shape) * sizes for n in range(number)]
    slopes, allowed = np.array([claim.estimate_slope_with_tolerance(unit) for unit in units]).T / sizes.flat[:number]
    given = g.values.flat[:number]
    square = x.ndim == 2 and x.shape[0] == x.shape[1] > 1
    transposed = g.values.T.flat[:number] if square else None
    if not all(np.isfinite(a).all() for a in (slopes, allowed, given)):
        return ""
    return guess_cause_in_gradient(
        ComponentComparison(given, slopes, MARGIN * float(g.rounding.max()), allowed), transposed
    )


def _needs_smaller_steps(verdict: CurveVerdict) -> bool:
    """Return whether steps leave the domain or are too long for a steep function."""
    return verdict.inconclusive or not all(math.isfinite(error) for _, error in verdict.curve)


def _has_staircase_values(phi: Callable[[np.ndarray], float], x: np.ndarray, v: np.ndarray) -> bool:
    """Return whether values form steps, as float32 values do.

    Fourth differences of a steep function fall faster with the spacing; float64 rounding shows at any spacing.
    """
    steps = (2.0**-26, 2.0**-29, 2.0**-44)
    wide, close, least = (max(abs(np.diff([phi(x + n * h * v) for n in range(9)], 4))) for h in steps)
    return bool(close > wide / 256 > least)
