"""Third derivatives of the graph neural operator, composed of its derivatives of lower order.

The notation follows docs/maths.md: features h, coordinates xi, layers U | b_u and V^ = V | b_v, z = U xi + b_u, and the
mask m of the active units. Let z_a and z_c be the derivatives of z along a = gg_ and along c, the cotangents of bwd2's
inputs, and let z_ac = A_U c_xi + C_U a_xi be its second derivative along both. The tangent of bwd2 along c is a sum of
calls of bwd2:

- with c_h in place of h, and with C_V^ in place of V^, along a;
- with a_h in place of h, and with A_V^ in place of V^, along z_c;
- along z_ac.

An input that is replaced has no direction and no gradient. Replacing xi or U would change m. Therefore the last term
adds c_xi and a_xi as coordinates with weights zero, U xi + 0 c_xi + 0 a_xi, and A_U and C_U as directions of the zeros.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trigraph.arrays import get_array_module

INPUTS = ("features", "coords", "params")


def add_bwd2_tangent(
    results: dict[str, Any],
    values: Mapping[str, Any],
    cotangents: Mapping[str, Any],
    wanted: Sequence[str],
    call_lower: Callable[..., Mapping[str, Any]],
) -> None:
    """Add the tangent of bwd2 along c to `results`. See `trigraph.backends.third.multilinear` for the arguments.

    In addition, `call_lower` accepts the number of coordinates, `d`.
    """
    coords, params = values["coords"], values["params"]
    xp, d, f = get_array_module(coords), coords.shape[1], values["f_in"] * values["f_out"]
    hidden = (params.size - f) // (d + 1 + f)
    # Index the second layer from the end, because additional coordinates lengthen the first layer's parameters.
    first, second = slice(hidden * (d + 1)), slice(-(hidden + 1) * f, None)
    a, c = ({n: arrays.get(prefix + n) for n in INPUTS} for arrays, prefix in ((values, "gg_"), (cotangents, "")))

    def join_layers(*arrays: Any) -> Any:
        """Return params with the first layer of one array and the second layer of another; None means zeros."""
        parts = zip(arrays, (first, second), strict=True)
        return xp.concatenate([xp.zeros_like(params[at]) if t is None else t[at] for t, at in parts])

    def zero_second_layer(direction: Mapping[str, Any]) -> dict[str, Any]:
        of_params = direction["params"]
        return {**direction, "params": None if of_params is None else join_layers(of_params, None)}

    def add_bwd2_fields(changed: Mapping[str, Any], direction: Mapping[str, Any], *excluded: str) -> None:
        """Add bwd2's fields for changed inputs along a direction, except for inputs or layers in `excluded`."""
        fields = tuple(n for n in wanted if not n.startswith("gg_") and n not in excluded)
        if not fields or all(t is None for t in direction.values()):
            return
        given = {**values, **changed, **{f"gg_{n}": direction.get(n) for n in INPUTS}}
        for n, t in call_lower(2, given, fields, d=given["coords"].shape[1]).items():
            if n == "params":
                t = join_layers(*(None if layer in excluded else t for layer in ("first", "second")))
            results[n] = results[n] + t if n in results else t

    for x, direction in ((c, a), (a, {**zero_second_layer(c), "features": None})):
        if x["features"] is not None:
            add_bwd2_fields({"features": x["features"]}, {**direction, "features": None}, "features")
        if x["params"] is not None:
            add_bwd2_fields({"params": join_layers(params, x["params"])}, zero_second_layer(direction), "second")
    pairs = [(s["params"], t["coords"]) for s, t in ((a, c), (c, a)) if s["params"] is not None is not t["coords"]]
    if pairs:
        # The additional coordinates have weight 0, but 0 times NaN or infinity is NaN and would change z. A coordinate
        # that is not finite is set to 0, and its value becomes a direction of xi, which reaches only active
        # units.
        finite = [xp.where(xp.isfinite(x), x, 0) for _, x in pairs]
        n = hidden * d  # number of the first layer's weights
        zeros = xp.zeros(n * len(pairs), params.dtype)
        extended_inputs = {
            "coords": xp.concatenate([coords, *finite], 1),
            "params": xp.concatenate([params[:n], zeros, params[n:]]),
        }
        extended_direction = {name: xp.zeros_like(x) for name, x in extended_inputs.items()}
        extended_direction["coords"][:, :d] = sum(x - y for (_, x), y in zip(pairs, finite, strict=True))
        extended_direction["params"][n : n + zeros.size] = xp.concatenate([w[:n] for w, _ in pairs])
        add_bwd2_fields(extended_inputs, extended_direction, "coords", "first")
