"""Splines and bins of scikit-learn as polynomials on consecutive intervals."""

from __future__ import annotations

from typing import Any

from amend.estimators.pipeline_columns import require


def bins_of(edges: Any, encode: str, raw: bool) -> dict[str, Any]:
    """The bins of a KBinsDiscretizer: one indicator for each, or their number.

    The service stores raw columns with 32 bits; `raw` edges are rounded likewise, as quantiles often equal a value.
    """
    import numpy as np

    inner = np.asarray(edges, np.float64)[1:-1]
    if raw:
        inner = inner.astype(np.float32).astype(np.float64)
    count = len(inner) + 1
    if encode == "ordinal":
        values = [[[float(i)] for i in range(count)]]
    else:
        values = [[[float(i == j)] for i in range(count)] for j in range(count)]
    return {"breaks": inner.tolist(), "origins": [0.0] * count, "coefficients": values}


def spline_of(spline: Any, transformer: Any) -> dict[str, Any]:
    """The basis functions of one input of a SplineTransformer."""
    import numpy as np
    from scipy.interpolate import PPoly

    kind = transformer.extrapolation
    require(kind != "periodic", "A SplineTransformer with extrapolation='periodic' cannot be imported. Use 'constant'.")
    degree, knots = int(spline.k), np.asarray(spline.t, np.float64)
    low, high = float(knots[degree]), float(knots[-degree - 1])
    basis = np.asarray(spline.c, np.float64)
    if not transformer.include_bias:
        basis = basis[:, :-1]
    pieces = [PPoly.from_spline((knots, column, degree)) for column in basis.T]
    x = pieces[0].x
    inside = [i for i in range(len(x) - 1) if x[i + 1] > x[i] and x[i] >= low and x[i + 1] <= high]
    origins = [float(x[i]) for i in inside]
    coefficients = [[piece.c[::-1, i].tolist() for i in inside] for piece in pieces]
    breaks = origins[1:]
    if kind == "linear":
        ends = [(low, 0), (high, len(inside))]
        for piece, found in zip(pieces, coefficients, strict=True):
            for end, place in reversed(ends):
                line = [float(piece(end)), float(piece.derivative()(end)), *[0.0] * (degree - 1)]
                found.insert(place, line[: degree + 1])
        origins, breaks = [low, *origins, high], [low, *breaks, high]
    limits = {"low": low, "high": high} if kind == "constant" else {}
    return {"breaks": breaks, "origins": origins, "coefficients": coefficients, **limits}
