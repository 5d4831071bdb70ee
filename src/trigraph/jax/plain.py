"""The plain form of every operator (`trigraph.plain`) in jax.numpy."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trigraph import plain

SEGMENTS = {"min": jax.ops.segment_min, "max": jax.ops.segment_max}
LIBRARY: plain.FrameworkFunctions = plain.FrameworkFunctions(
    xp=jnp,
    scatter=jax.ops.segment_sum,
    groups=lambda index, num: (index, num),
    outer=lambda a, b, groups: jax.ops.segment_sum(a[:, :, None] * b[:, None], *groups),
    times=lambda a, matrices, groups: jnp.einsum("em,emc->ec", a, matrices[groups[0]]),
    extremum=lambda rows, index, num, which: SEGMENTS[which](rows, index, num),
    constant=jax.lax.stop_gradient,
    polynomial=lambda terms, x: jnp.polyval(jnp.asarray(terms, x.dtype), x, unroll=1),
    harmonics=lambda unit, degree: plain.spherical_harmonics(LIBRARY, unit, degree),
    softmax=lambda logit, i, n: plain.softmax_by_destination(LIBRARY, logit, i, n),
    bessel=lambda l, x: plain.spherical_bessel(LIBRARY, l, x),  # noqa: E741
    wide=lambda x: x,
    array=lambda a, like: jnp.asarray(a, like.dtype),
)
PLAIN: dict[str, Any] = {name: partial(function, LIBRARY) for name, function in plain.PLAIN.items()}
