"""Figures of a report: the largest error of each operator and backend, and finite-difference curves."""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from slopecheck.record import Check
from slopecheck.summary import compute_error_ratio, find_worst_check, group_by
from slopecheck.terms import ReportTerms
from slopecheck.tolerances import EPS

# Colour of all lines and texts outside coloured cells; pages replace it with their text colour.
INK = "#1d2129"
MUTED = "#8a919c"
WRONG = "#c62828"
# Errors far below the tolerance are light, errors near the tolerance dark; errors above the tolerance are red.
WITHIN = LinearSegmentedColormap.from_list("within", ["#eef4fa", "#9cc3df", "#3d7fb3", "#1b4f7d"])
OTHER_COLOUR = "#56b4e9"  # for functions and calculators; from the palette of Okabe and Ito, like `ReportTerms.colours`
DASHES: dict[str, Any] = {"float32": ":", "float64": "-", "real128": "--"}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "slopecheck",
}
# Style of reference lines.
DOTTED: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (1, 2))}
DASHED: dict[str, Any] = {**DOTTED, "linestyle": (0, (4, 3))}


def _draw_matrix_cell(axes: mpl.axes.Axes, x: int, y: int, checks: Sequence[Check]) -> None:
    check = find_worst_check(checks)
    if check is None:
        axes.text(x, y, "–", ha="center", va="center", color=MUTED)
        return
    value = compute_error_ratio(check)
    colour = WITHIN(value) if check.passed else WRONG
    text = f"{value:.2f}" if value < 100 else f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    if not math.isfinite(value):  # a NaN, an exception, or a bitwise difference
        text = "NaN" if math.isnan(check.error) else "✗"
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, facecolor=colour, edgecolor="none"))
    light = check.passed and value < 0.62
    weight = "normal" if check.passed else "bold"
    # Pages do not replace these text colours, which match the colour of the cell.
    axes.text(x, y, text, ha="center", va="center", color="#10202f" if light else "#ffffff", fontweight=weight)


def draw_error_matrix(checks: Sequence[Check], terms: ReportTerms) -> Figure | None:
    """Draw the matrix operator x backend of the largest error of any check, in units of its tolerance.

    Return None if nothing was checked. The figure fits the width of a phone's screen.
    """
    made = (c for c in checks if c.offered and c.backend and c.operator)
    groups = group_by(made, lambda c: (c.operator, c.backend))
    if not groups:
        return None
    operators, backends = (list(dict.fromkeys(names)) for names in zip(*groups, strict=True))
    with mpl.rc_context({**STYLE, "font.size": 8}):
        size = (2.2 + 0.42 * max(len(backends), 2), 1.5 + 0.19 * len(operators))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        for y, operator in enumerate(operators):
            for x, backend in enumerate(backends):
                _draw_matrix_cell(axes, x, y, groups.get((operator, backend), []))
        axes.set(xlim=(-0.5, len(backends) - 0.5), ylim=(len(operators) - 0.5, -0.5))
        axes.set_xticks(
            range(len(backends)), [p[-24:] for p in backends], rotation=40, ha="left", rotation_mode="anchor"
        )
        axes.set_yticks(range(len(operators)), operators, family="monospace", fontsize=7)
        axes.tick_params(length=0, labeltop=True, labelbottom=False, pad=1)
        axes.spines[:].set_visible(False)
    return figure


def _extract_curve_points(check: Check) -> np.ndarray:
    """Return the points of a curve; zeros become gaps, since the axes are logarithmic."""
    line = np.array(check.curve, float)
    line[:, 1][~(line[:, 1] > 0)] = np.nan
    return line


def _draw_curves(axes: mpl.axes.Axes, checks: Sequence[Check], terms: ReportTerms) -> None:
    """Draw a line for each curve; the colour shows the backend, the line style the dtype."""
    for (backend, dtype), group in group_by(checks, lambda c: (c.backend, c.dtype)).items():
        style = {"colors": terms.colours.get(backend, OTHER_COLOUR), "linestyles": DASHES[dtype]}
        axes.add_collection(
            LineCollection([_extract_curve_points(c) for c in group], **style, linewidths=0.9, alpha=0.75)
        )


def _compute_axis_range(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()) / 3, float(values.max()) * 3


def draw_difference_curves(checks: Sequence[Check], terms: ReportTerms) -> Figure | None:
    """Draw error against step for all finite-difference curves, one plot for each operator, on common axes.

    Return None if there is no curve.
    """
    curves = [c for c in checks if c.curve and c.kind in terms.curves]
    if not curves:
        return None
    operators = group_by(curves, lambda c: c.operator)
    points = np.array([p for c in curves for p in c.curve], float)
    shown = points[:, 1][np.isfinite(points[:, 1]) & (points[:, 1] > 0)]
    width = min(len(operators), 3)
    height = math.ceil(len(operators) / width)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.0 + 2.9 * width, 0.9 + 2.2 * height), layout="constrained")
        grid = figure.subplots(height, width, sharex=True, sharey=True, squeeze=False)
        steps = np.array(_compute_axis_range(points[:, 0]))
        for axes, (operator, own) in zip(grid.flat, operators.items(), strict=False):
            for dtype in dict.fromkeys(c.dtype for c in own):
                axes.plot(steps, EPS[dtype] / steps, **DOTTED)
            if any(c.order is not None for c in own):
                axes.plot(steps, steps**2, **DASHED)
            _draw_curves(axes, own, terms)
            axes.set_title(operator, fontsize=9)
            axes.set(
                xscale="log", yscale="log", xlim=steps, **({"ylim": _compute_axis_range(shown)} if shown.size else {})
            )
            axes.grid(color=MUTED, alpha=0.25, linewidth=0.5)
        for axes in list(grid.flat)[len(operators) :]:
            axes.set_visible(False)
        lines: list[tuple[str, dict[str, Any]]] = [
            (f"{backend}, {dtype}", {"color": terms.colours.get(backend, OTHER_COLOUR), "linestyle": DASHES[dtype]})
            for backend, dtype in dict.fromkeys((c.backend, c.dtype) for c in curves)
        ]
        lines.append(("roundoff: eps / h", DOTTED))
        if any(c.order is not None for c in curves):
            lines.append(("truncation: slope 2", DASHED))
        figure.supxlabel("step h", fontsize=9)
        figure.supylabel("relative error of the central difference", fontsize=9)
        handles = [Line2D([], [], label=text, **style) for text, style in lines]
        figure.legend(handles=handles, loc="outside upper center", ncols=4 if width > 1 else 2, frameon=False)
    return figure


PICTURES: dict[str, Callable[[Sequence[Check], ReportTerms], Figure | None]] = {
    "agreement": draw_error_matrix,
    "differences": draw_difference_curves,
}


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG on white."""
    data = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(data, format="png", dpi=160, facecolor="white")
    return data.getvalue()


def svg(figure: Figure) -> str:
    """Return a figure as an SVG element for a page: transparent, with lines and texts in the page's colour."""
    data = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(
            data, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    text = data.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")
