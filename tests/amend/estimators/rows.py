"""Rows that estimators are fitted on, and what an import of them is in the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from amend.estimators import Import, compose, describe_inputs
from core.kprior import Examples, Predictor, Result, adopt
from core.kprior.model.spec import Spec
from core.kprior.model.target_scale import from_fitted, to_fitted

Numbers = NDArray[Any]
PLANS = ["free", "paid", "trial"]


def frame(n: int, kind: str, seed: int = 0) -> pd.DataFrame:
    """Age, plan and pay, with a target of a kind."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"age": rng.normal(40, 12, n), "plan": rng.choice(PLANS, n), "pay": rng.gamma(2, 900, n)})
    made = made.astype({"age": np.float32, "pay": np.float32})
    f = (made.age - 40) / 12 - (made.plan == "paid") + (made.pay - 1800) / 2500
    noise = rng.normal(size=n)
    targets: dict[str, Any] = {
        "binary": (f + noise > 0).astype(int),
        "words": np.where(f + noise > 0, "stay", "go"),
        "classes": np.select([f + noise > 0.7, f + noise < -0.7], ["high", "low"], "mid"),
        "number": f + noise,
        "count": rng.poisson(np.exp(0.4 * f)),
    }
    return made.assign(y=targets[kind])


def arrays(n: int, kind: str, seed: int = 0) -> dict[str, Any]:
    """Age and pay as an array."""
    made = frame(n, kind, seed)
    x = made[["age", "pay"]].to_numpy() / np.float32([10, 1000])  # as the service stores them
    return {"x": x.astype(np.float64), "y": made.y.to_numpy()}


def imported(estimator: Any, examples: Any, **options: Any) -> Import:
    return compose(estimator, describe_inputs(examples, "y"), options.get("outputs"), options.get("regularizer"))


def spec_of(made: Import) -> Spec:
    parts: Any = {"input": made.input, "target": made.target, "architecture": made.architecture}
    if made.class_weight is not None:
        parts["class_weight"] = made.class_weight
    if made.loss is not None:
        parts["loss"] = {"kind": made.loss}
    return {**parts, "regularizer": made.regularizer}


def raw_inputs(made: Import, examples: Any) -> Numbers:
    """Inputs as the service reads them."""
    if made.input["kind"] != "table":
        return np.asarray(examples["x"], np.float32)
    columns = []
    for column in made.input["columns"]:
        values = examples[column["name"]]
        codes = None if column["type"] == "number" else {v: i for i, v in enumerate(column["values"])}
        known = values if codes is None else values.map(codes)
        columns.append(known if codes is None else known.mask(known.isna() & values.notna(), -1))  # unseen
    return np.stack([np.asarray(column, np.float32) for column in columns], 1)


def to_examples(made: Import, examples: Any) -> Examples:
    y, target = np.asarray(examples["y"]), made.target
    if "transform" in target:
        y = to_fitted(target, y)  # type: ignore[arg-type]
    if target["kind"] == "classes":
        hot = np.stack([y == value for value in target["values"]], 1).astype(np.float64)
    else:
        hot = y.astype(np.float64)[:, None]
    weight = torch.tensor(np.asarray(examples["weight"])) if "weight" in examples else None
    return Examples(torch.arange(len(y)), torch.from_numpy(raw_inputs(made, examples)), torch.from_numpy(hot), weight)


def adopted(made: Import, examples: Any) -> Result:
    """The state that a worker makes of it."""
    data = to_examples(made, examples)
    units = None if made.units is None else tuple(torch.tensor(v).double() for v in made.units.values())
    return adopt(spec_of(made), torch.tensor(made.weights).double(), [data], len(data), units=units)  # type: ignore[arg-type]


def predicted(result: Result, made: Import, examples: Any) -> Numbers:
    predictor: Predictor = result.state.predictor
    f = predictor.outputs(result.state.w, torch.from_numpy(raw_inputs(made, examples)))
    means: Numbers = from_fitted(made.target, predictor.family.mean(f).numpy())  # type: ignore[arg-type]
    return means


def expected(estimator: Any, x: Any) -> Numbers:
    """What an estimator says: the probability of the last class, or of all; else the number."""
    if not hasattr(estimator, "predict_proba"):
        return np.asarray(estimator.predict(x))[:, None]
    return np.asarray(estimator.predict_proba(x))
