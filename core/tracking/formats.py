"""Numbers, durations and parts of a spec as text, for MLflow, reports and pages."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from core.kprior.model.spec import FrozenEncoder, Input, SpecPart, Target

SMALLEST_PERCENTAGE = 0.0001
"""Percentages below this are shown as less than it."""


def describe_target(described: Target) -> str:
    if described["kind"] == "classes":
        return f"one of {len(described['values'])} classes"
    if described["kind"] == "labels":
        return f"any of {len(described['values'])} {plural('label', len(described['values']))}"
    return {"binary": "a binary target", "number": "a number", "count": "a count"}[described["kind"]]


def describe_input(described: Input) -> str:
    if described["kind"] == "vector":
        return f"vectors of {described['dim']} {plural('number', described['dim'])}"
    if described["kind"] == "image":
        return f"images of {' x '.join(map(str, described['shape']))}"
    if described["kind"] == "text":
        return "texts"
    return f"a table with {len(described['columns'])} {plural('column', len(described['columns']))}"


def describe_part(described: SpecPart) -> str:
    """
    >>> describe_part({"kind": "l2", "delta": 5.0, "toward": [0.5, -1.0]})
    'l2, delta 5.0, toward 2 weights (sha256 0d243f6665c4)'
    >>> describe_part({"kind": "kernel", "kernel": "rbf", "features": 200})
    'kernel rbf, features 200'
    >>> describe_part({"kind": "l2", "delta": 5.0, "penalize_bias": False})
    'l2, delta 5.0, penalize_bias false'
    >>> describe_part({"kind": "linear", "encoder": {"kind": "hashing", "features": 64}})
    'linear, encoder hashing (64 features)'
    """
    options = {name: value for name, value in described.items() if name != "kind" and value is not None}
    if "toward" in options:
        # MLflow never deletes parameters, and weights may reveal personal data
        weights = json.dumps(options["toward"])
        digest = hashlib.sha256(weights.encode()).hexdigest()[:12]
        options["toward"] = f"{weights.count(',') + 1} weights (sha256 {digest})"
    if "encoder" in options:
        options["encoder"] = describe_encoder(cast(FrozenEncoder, options["encoder"]))
    kind = described["kind"]
    named = f"{kind} {options.pop(kind)}" if kind in options else kind
    # booleans as the API writes them
    written = {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
    return ", ".join([named, *(f"{name} {value}" for name, value in written.items())])


def describe_encoder(encoder: FrozenEncoder) -> str:
    """
    >>> describe_encoder({"kind": "onnx", "digest": "sha256:9f86d081884c7d65", "features": 8, "trained_on": "examples"})
    'onnx sha256:9f86d081884c (8 features, trained on examples)'
    """
    fields = cast(Mapping[str, object], encoder)
    named = [fields["kind"], fields.get("name"), str(fields.get("digest", ""))[: len("sha256:") + 12]]
    about = [f"{fields.get('features')} features"]
    if origin := fields.get("trained_on"):
        about.append("trained on examples" if origin == "examples" else "trained on other data")
    return f"{' '.join(str(part) for part in named if part)} ({', '.join(about)})"


def number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def describe_span(first: int, last: int) -> str:
    """
    >>> describe_span(4, 9), describe_span(9, 9)
    ('changes 4-9', 'change 9')
    """
    return f"change {last}" if first >= last else f"changes {first}-{last}"


def plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def percent(fraction: float) -> str:
    """
    >>> percent(0.99812), percent(0.00004), percent(1.0), percent(1e-12)
    ('99.8 %', '0.004 %', '100 %', 'less than 0.0001 %')
    """
    value = 100 * fraction
    if 0 < value < SMALLEST_PERCENTAGE:
        return f"less than {SMALLEST_PERCENTAGE} %"
    if value in (0, 100):
        return f"{value:.0f} %"
    return f"{value:.1f} %" if 1 <= value < 99.95 else f"{value:.4g} %" if value > 99 else f"{value:.1g} %"


def figure(value: float) -> str:
    """
    >>> figure(0.94251), figure(0.0000312), figure(1234.5), figure(351052.4) == "351\\u202f100"
    ('0.943', '3.1e-05', '1234', True)
    """
    if value != 0 and abs(value) < 0.001:
        return f"{value:.2g}"
    if 1e4 <= abs(value) < 1e9:
        return f"{float(f'{value:.4g}'):,.0f}".replace(",", "\u202f")
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def show_metric(value: float | None, name: str | None) -> str:
    """
    >>> show_metric(0.9425, "accuracy"), show_metric(0.25, "loss"), show_metric(None, "loss")
    ('94.2 %', '0.250', '–')
    """
    if value is None:
        return "–"
    return percent(value) if name in ("accuracy", "balanced_accuracy", "disagreement") else figure(value)


def spell_metric(name: str) -> str:
    """
    >>> spell_metric("average_precision"), spell_metric("auc"), spell_metric("loss")
    ('average precision', 'AUC', 'loss')
    """
    short = {"auc": "AUC", "f1": "F1", "rmse": "RMSE", "mae": "MAE", "r2": "R\u00b2", "brier": "Brier score"}
    return short.get(name) or name.replace("_", " ")


def duration(seconds: float) -> str:
    """
    >>> duration(0.0123), duration(4.12), duration(75), duration(310), duration(9000)
    ('0.012 s', '4.1 s', '75 s', '5.2 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
