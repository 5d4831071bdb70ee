"""Checks of how a function behaves in calls: dtypes and shapes, side effects, threads, single requests and layouts."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from slopecheck.curves import BETTER
from slopecheck.frameworks import THREADS, as_tuple
from slopecheck.identities import EPSILON, PARTS, IdentityChecks, compute_relative_error, find_largest_magnitude
from slopecheck.outcome import describe_exception
from slopecheck.problem import ARGUMENT_GROUPS, DERIVATIVES, Arrays, DerivativeArguments, FunctionAtPoint
from slopecheck.record import Check
from slopecheck.tolerances import MARGIN, ROUNDING, UNSURE

# Number of calls that are compared. A result that is wrong at random with probability 0.3 differs between at least two
# calls with probability 1 - 0.7**39 - 0.3**39, that is, 1 - 9e-7.
REPEATS = 39
OWN = 50  # largest number of the framework's functions in a call that are checked individually


class CallChecks(IdentityChecks):
    """Checks of how one function behaves in calls, with a method for each kind of check."""

    repeats = REPEATS

    @cached_property  # safe to cache: the problem does not change, and its `rng` is used only once
    def _arrays_in_user_dtypes(self) -> tuple[Arrays, list[Arrays]]:
        """Outputs for the user's inputs; then inputs, weights and directions in the dtypes of the user's arrays."""
        p, x = self.p, [self.p.originals[i] for i in self.p.wanted]
        outputs = [
            p.framework.to_host(y)
            for y in as_tuple(p.framework.compute_outputs(p.copy_inputs()))
            if p.framework.is_array(y)
        ]

        def draw_cotangents_in_output_dtypes() -> Arrays:
            return [
                w.astype(y.dtype) if y.dtype.kind == "f" else np.zeros(0)
                for w, y in zip(p.draw_cotangents(outputs), outputs, strict=True)
            ]

        w, h = draw_cotangents_in_output_dtypes(), draw_cotangents_in_output_dtypes() if self.h else []
        u, v = ([u.astype(a.dtype) for u, a in zip(group, x, strict=bool(group))] for group in (self.u, self.v))
        return outputs, [x, w, u, v, h]

    def check_form(self) -> Iterator[Check]:
        """Check dtypes, shapes and devices of derivatives, and dtypes of outputs."""
        p, (outputs, (x, *_)) = self.p, self._arrays_in_user_dtypes
        given = [(p.names[i], a) for i, a in p.originals.items()]
        for name, array in (*given, *((f"output {k}", y) for k, y in enumerate(outputs))):
            if array.dtype.kind == "c":
                note = f"{array.dtype} is not checked: check the same function with separate real and imaginary parts"
                yield self.make_check(0, name, math.inf, 0.0, note, inconclusive=True)
        widest = max((a.dtype for a in x), key=lambda dtype: dtype.itemsize)
        for k, y in enumerate(y for y in outputs if y.dtype.kind == "f"):
            wider = y.dtype.itemsize > widest.itemsize
            yield self.make_check(0, f"output {k}", float(wider), 0.0, f"output is {y.dtype}; the inputs are {widest}")
        for order in self.orders:
            a = p.make_arguments(*self._arrays_in_user_dtypes[1])
            arguments = itertools.chain(*self._list_labelled_arguments(a)[:order])
            for (name, argument, wanted), g in zip(arguments, p.compute_native_results(order, a), strict=True):
                if g is not None and argument is not None:
                    yield self._compare_dtype_shape_device(order, name, g, argument, wanted)

    def _list_labelled_arguments(self, a: DerivativeArguments) -> list[list[tuple[str, Any, np.ndarray]]]:
        """Return the label, native array and NumPy values of each argument from `_arrays_in_user_dtypes`, by group."""
        natives = [[a.inputs[i] for i in self.p.wanted], *(getattr(a, group) for group in tuple(ARGUMENT_GROUPS)[1:])]
        return [
            [
                (self.p.label_argument(group, k), *pair)
                for k, pair in enumerate(zip(values, arrays, strict=bool(arrays)))
            ]
            for group, values, arrays in zip(ARGUMENT_GROUPS, natives, self._arrays_in_user_dtypes[1], strict=True)
        ]

    def check_unchanged(self) -> Iterator[Check]:
        """Check that no call modifies an argument."""
        p = self.p
        for order in (0, *self.orders):
            a = p.make_arguments(*self._arrays_in_user_dtypes[1])
            p.compute_native_results(order, a)
            given = [(p.names[i], a.inputs[i], old) for i, old in p.originals.items()]
            for (lowest, _), arguments in list(
                zip(ARGUMENT_GROUPS.values(), self._list_labelled_arguments(a), strict=True)
            )[1:]:
                given += [row for row in arguments if order >= lowest and row[1] is not None]
            for name, value, old in given:
                same = np.array_equal(p.framework.to_host(value), old, equal_nan=old.dtype.kind == "f")
                yield self.make_check(order, name, float(not same), 0.0, "it was modified by a call")

    def _compare_dtype_shape_device(
        self, order: int, name: str, derivative: Any, argument: Any, wanted: np.ndarray
    ) -> Check:
        """Compare the dtype, shape and device of a derivative with its argument."""
        p, what = self.p, DERIVATIVES[order]
        array, note = p.read_array_values(derivative, f"{what} in {name}"), ""
        if (array.dtype, array.shape) != (wanted.dtype, wanted.shape):
            note = f"{what} is {array.dtype} {array.shape}; expected {wanted.dtype} {wanted.shape}, as {name}"
        elif p.framework.device_of(derivative) != p.framework.device_of(argument):
            note = f"{what} is on {p.framework.device_of(derivative)}; expected {p.framework.device_of(argument)}"
        return self.make_check(order, name, float(bool(note)), 0.0, note)

    def check_repeat(self) -> Iterator[Check]:
        """Check that repeated calls give bitwise equal results."""
        yield from self._compare_calls_in_contexts(
            "from one call to the next", lambda part: [nullcontext()] * part.repeats
        )

    def check_threads(self) -> Iterator[Check]:
        """Check that one, two and three threads give bitwise equal results."""
        yield from self._compare_calls_in_contexts(
            f"with {THREADS} threads", lambda part: map(part.p.framework.use_threads, THREADS)
        )

    def _compare_calls_in_contexts(
        self, what: str, contexts: Callable[["CallChecks"], Iterable[Any]]
    ) -> Iterator[Check]:
        """Check that calls, each in a context, give bitwise equal results; name the framework function at fault."""

        def compare_repeated_calls(part: CallChecks) -> list[Check]:
            calls = []
            for context in contexts(part):
                with context:
                    calls.append(part._compute_results(part._make_arguments()))
            return list(part._compare_bits(what, calls))

        rows = compare_repeated_calls(self)
        wrong = any(row.failed for row in rows)
        own = (
            self._describe_failing_framework_function(self.p.inputs, lambda part, given: compare_repeated_calls(part))
            if wrong
            else ""
        )
        yield from (replace(row, note=row.note + own) if row.failed else row for row in rows)

    def check_kept(self) -> Iterator[Check]:
        """Check that later calls do not modify earlier results."""
        p, a = self.p, self._make_arguments()
        natives = [p.compute_native_results(order, a) for order in (0, *self.orders)]

        def copy_results_to_host() -> list[Arrays]:
            return [[p.framework.to_host(v) for v in part if p.framework.is_array(v)] for part in natives]

        before = copy_results_to_host()
        self._compute_results(self._make_arguments(p.perturb_randomly(p.x, 2.0**-30)))
        yield from self._compare_bits("after another call, which overwrites them", [before, copy_results_to_host()])

    def check_history(self) -> Iterator[Check]:
        """Check that results are bitwise equal after calls with other inputs."""
        before = self._compute_results(self._make_arguments())
        for point in (self.p.perturb_randomly(self.p.x, 2.0**-7), self.p.perturb_randomly(self.p.x, 2.0**-30)):
            with suppress(Exception):  # the point may be outside the domain
                self._compute_results(self._make_arguments(point))
        yield from self._compare_bits(
            "after calls with other inputs", [before, self._compute_results(self._make_arguments())]
        )

    def check_alone(self) -> Iterator[Check]:
        """Check that derivatives for single inputs, directions or outputs agree with derivatives from joint calls."""
        p, many = self.p, range(len(self.p.x))
        whole = self._compute_results(self._make_arguments(), 1)
        used = [k for k, w in enumerate(self.w) if w.size]
        for k in many if len(many) > 1 else ():
            a = self._make_single_value_arguments(directions=k, second_directions=k)
            for order in self.orders:
                one, joint = p.compute_derivatives(order, a, k)[0][0], p.compute_results(order, a)[k]
                yield self._compare_with_joint_call(
                    order, f"{self._name_input(k)} alone", one, joint, find_largest_magnitude(joint)
                )

        def compare_sum_with_joint(
            order: int, what: str, choices: Sequence[DerivativeArguments], number: int | None = None
        ) -> Iterator[Check]:
            """Check that the first `number` results of single calls add up to the results of a joint call."""
            joint = whole[order - 1][:number]
            for k, terms in enumerate(zip(*(p.compute_results(order, a)[:number] for a in choices), strict=True)):
                name = f"{self._name_argument(k)}, sum over {what}"
                yield self._compare_with_joint_call(
                    order, name, sum(terms), joint[k], sum(map(find_largest_magnitude, terms))
                )

        for order in self.orders[1:] if len(many) > 1 else ():
            yield from compare_sum_with_joint(
                order,
                "directions",
                [self._make_single_value_arguments(directions=k) for k in many],
                len(many) + len(used),
            )
        if len(self.orders) == 3:
            choices = [self._make_single_value_arguments(second_directions=k, cotangent_directions=None) for k in many]
            yield from compare_sum_with_joint(
                3, "second directions", [*choices, self._make_single_value_arguments(second_directions=None)]
            )
        for order in self.orders if len(used) > 1 else ():
            choices = [self._make_single_value_arguments(cotangents=k, cotangent_directions=k) for k in used]
            yield from compare_sum_with_joint(order, "outputs", choices, len(many))

    def _make_single_value_arguments(self, **numbers: int | None) -> DerivativeArguments:
        """Return arguments in which each named group keeps only the value of the given number (None: no value)."""
        a = self._make_arguments()
        for group, k in numbers.items():
            setattr(a, group, [value if i == k else None for i, value in enumerate(getattr(a, group))])
        return a

    def _compare_with_joint_call(self, order: int, what: str, array: Any, expected: np.ndarray, usual: float) -> Check:
        error = compute_relative_error(np.asarray(array), expected, usual)
        allowed, unsure = self._estimate_summation_tolerance(error, order)
        problem = f"differs by {error:.0e} from the result of a joint call" + f"; {BETTER}" * unsure
        return self.make_check(order, what, error, allowed, problem, inconclusive=unsure)

    def _estimate_summation_tolerance(
        self, error: float, lowest: int, numbers: Sequence[Arrays] | None = None
    ) -> tuple[float, bool]:
        """Return the relative difference that another order of summation may cause in results from order `lowest` on.

        The second value says whether a larger error may still be due to rounding. `numbers` holds the arrays of each
        group of arguments (default: the original point).
        """
        least = max(ROUNDING, MARGIN * self.accuracy)
        if error <= least:
            return least, False
        own = numbers is None
        numbers = [self.p.x, *self.rest] if numbers is None else numbers
        here = self._compute_flat_results(self.p.make_arguments(*numbers), lowest)
        rounding = 0.0
        for _ in range(3):
            near = self.p.make_arguments(*(self.p.perturb_randomly(a, EPSILON) for a in numbers))
            nearby = self._compute_flat_results(near, lowest)
            rounding = max(rounding, *(compute_relative_error(b, a, 0.0) for a, b in zip(here, nearby, strict=True)))
        allowed = least + MARGIN * min(rounding, UNSURE)
        # Equal rows may make a matrix singular; the last bits then decide whether the logarithm of zero is taken.
        undefined = not own and math.isinf(error) and rounding > UNSURE
        return allowed, undefined or allowed < error <= MARGIN * rounding

    def _describe_failing_framework_function(
        self, inputs: Sequence[Any], check: Callable[["CallChecks", list[Any]], Iterable[Check]]
    ) -> str:
        """Return a remark if a function of the framework that the call uses also fails by itself, else "".

        `check` applies the failed check to this function with the arrays that the function receives in the call.
        """
        for name, framework, given in itertools.islice(self.p.framework.list_called_functions(inputs), OWN):
            with suppress(Exception):  # the function may not be differentiable by itself
                part = CallChecks(FunctionAtPoint(framework, given, np.random.default_rng(0)), name, len(self.orders))
                again = part.compare_with_contiguous_inputs(
                    part._make_arguments().inputs
                )  # fails only if the function is random
                if all(row.passed for row in again) and any(row.failed for row in check(part, given)):
                    return f"; so do the results of {name} alone: the cause is in {framework.name}"
        return ""

    def compare_with_contiguous_inputs(self, inputs: list[Any]) -> Iterable[Check]:
        """Compare results for contiguous inputs with results for `inputs`, which hold the same values."""
        other, usual = (
            self._make_arguments(),
            [[find_largest_magnitude(a) for a in part] for part in self._compute_results(self._make_arguments())],
        )
        other.inputs = inputs
        return self._compare_layouts("", self._make_arguments(), other, 0, usual)

    def check_layout(self) -> Iterator[Check]:
        """Check that the memory layout of inputs, cotangents and directions changes results at most by rounding."""
        p, usual = (
            self.p,
            [[find_largest_magnitude(a) for a in part] for part in self._compute_results(self._make_arguments())],
        )
        for (group, (lowest, _)), arrays in zip(ARGUMENT_GROUPS.items(), [p.x, *self.rest], strict=True):
            for k, array in enumerate(arrays if lowest <= len(self.orders) else ()):
                like = p.inputs[p.wanted[0 if "cotangent" in group else k]]
                for name, value in self._copy_in_layouts(array, like):
                    plain, other = self._make_arguments(), self._make_arguments()
                    at = p.wanted[k] if group == "inputs" else k
                    same = np.repeat(array[:1], len(array), axis=0) if name == "expanded" else array
                    getattr(plain, group)[at] = p.framework.from_host(same, like)
                    getattr(other, group)[at] = value
                    moved = [[same if a is array else a for a in one] for one in (p.x, *self.rest)]
                    numbers = None if same is array else moved  # None stands for the original point
                    for row in self._compare_layouts(
                        f"{p.label_argument(group, k)}, {name}", plain, other, lowest, usual[lowest:], numbers
                    ):
                        own = row.failed and group == "inputs" and not math.isinf(row.error)
                        more = (
                            self._describe_failing_framework_function(
                                other.inputs, CallChecks.compare_with_contiguous_inputs
                            )
                            if own
                            else ""
                        )
                        yield replace(row, note=row.note + more)

    def _copy_in_layouts(self, array: np.ndarray, like: Any) -> Collection[tuple[str, Any]]:
        return self.p.framework.copy_in_layouts(array, like).items() if array.ndim and array.size else ()

    def _compare_layouts(
        self,
        what: str,
        plain: DerivativeArguments,
        other: DerivativeArguments,
        lowest: int,
        usual: Sequence[Sequence[float]],
        numbers: Sequence[Arrays] | None = None,
    ) -> Iterator[Check]:
        """Compare results for a contiguous array with results for the same values in another layout.

        `usual` holds the magnitudes of results at the original point, because results for equal rows may vanish up to
        rounding. `numbers` holds the values of all arguments, for `_estimate_summation_tolerance`.
        """
        try:
            right = self._compute_results(plain, lowest)
        except Exception:  # the function rejects these values in the plain layout, too
            return
        allowed, unsure = ROUNDING, False
        try:
            results = self._compute_results(other, lowest)
        except Exception as error:  # any error is specific to this layout
            worst, problem = math.inf, f"raises only in this layout: {describe_exception(error)}"
        else:
            errors = [
                (compute_relative_error(a, b, size), PARTS[lowest + part])
                for part, rows in enumerate(zip(results, right, usual, strict=True))
                for a, b, size in zip(*rows, strict=True)
            ]
            worst, where = max(errors, key=lambda e: math.inf if math.isnan(e[0]) else e[0])
            allowed, unsure = self._estimate_summation_tolerance(worst, lowest, numbers)
            problem = f"{where} differ from results in the contiguous layout by {worst:.0e}" + f"; {BETTER}" * unsure
        yield self.make_check("", what, worst, allowed, problem, inconclusive=unsure)
