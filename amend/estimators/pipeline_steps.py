"""Describes the steps of a fitted pipeline as data (`input.transform`), where its features are not columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from amend.errors import EstimatorUnsupported
from amend.estimators.pipeline_columns import (
    KERNEL,
    MISSING,
    column_indices,
    fill_values,
    input_names,
    is_a,
    is_identity,
    is_nan,
    name_of,
    one_hot_outputs,
    plain_category,
    require,
    scaling_of,
)
from amend.estimators.splines import bins_of, spline_of

Step = dict[str, Any]
ENCODERS = ("OneHotEncoder", "OrdinalEncoder", "TargetEncoder")
FUNCTIONS = ("log1p", "log", "log2", "log10", "sqrt", "square", "exp", "expm1", "abs")
SUPPORTED = (
    "SimpleImputer, StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, Normalizer, OneHotEncoder, "
    "OrdinalEncoder, TargetEncoder, FunctionTransformer of NumPy's log1p, log, sqrt and square, PolynomialFeatures, "
    "KBinsDiscretizer, SplineTransformer, Binarizer, PCA, TruncatedSVD, feature selection, ColumnTransformer, "
    "FeatureUnion and Pipeline"
)


@dataclass(frozen=True)
class Slot:
    """A feature on its way through the pipeline."""

    column: int | None = None
    """Index of the raw column that it still is; None once it was computed."""
    fill: Any = None
    """What a missing category counts as."""


@dataclass
class PipelineReader:
    """Reads transformers. It collects the categories of the raw columns."""

    names: Sequence[str] | None
    is_table: bool
    categories: dict[int, list[Any]] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    """Raw columns that are used as numbers."""
    deferred: list[Callable[[], None]] = field(default_factory=list)
    """Encoders wait for all categories of their columns."""

    def read(self, transformer: Any, slots: list[Slot], later: Sequence[Any] = ()) -> tuple[list[Step], list[Slot]]:
        """The steps of a transformer, and the features after it. `later` are the transformers that follow."""
        if transformer in (None, "passthrough") or is_identity(transformer):
            return [], slots
        if is_a(transformer, "Pipeline"):
            return self.chain([step for _, step in transformer.steps], slots, later)
        if is_a(transformer, "ColumnTransformer"):
            given = input_names(transformer, self.names)
            chosen = [
                (part, column_indices(columns, given, len(slots)))
                for _, part, columns in transformer.transformers_
                if part != "drop"
            ]
            return self.parts(chosen, slots, later)
        if is_a(transformer, "FeatureUnion"):
            require(not transformer.transformer_weights, "A FeatureUnion with weights cannot be imported.")
            everything = list(range(len(slots)))
            return self.parts([(part, everything) for _, part in transformer.transformer_list], slots, later)
        if is_a(transformer, "SelectorMixin"):
            kept = [int(i) for i in transformer.get_support(indices=True)]
            return [select(kept)], [slots[i] for i in kept]
        if is_a(transformer, "SimpleImputer"):
            return self.impute(transformer, slots, any(is_a(step, *ENCODERS) for step in later))
        if is_a(transformer, *ENCODERS):
            return self.encode(transformer, slots)
        self.numbers |= {slot.column for slot in slots if slot.column is not None}
        raw = all(slot.column is not None for slot in slots)
        steps, width = read_numeric(transformer, len(slots), raw)
        return steps, [Slot()] * width

    def chain(
        self, transformers: Sequence[Any], slots: list[Slot], later: Sequence[Any] = ()
    ) -> tuple[list[Step], list[Slot]]:
        steps: list[Step] = []
        for i, transformer in enumerate(transformers):
            more, slots = self.read(transformer, slots, [*transformers[i + 1 :], *later])
            steps += more
        return steps, slots

    def parts(
        self, chosen: list[tuple[Any, list[int]]], slots: list[Slot], later: Sequence[Any]
    ) -> tuple[list[Step], list[Slot]]:
        parts, made = [], []
        for part, indices in chosen:
            if not indices:
                continue
            steps, after = self.read(part, [slots[i] for i in indices], later)
            parts.append({"inputs": indices, "steps": steps})
            made += after
        return [{"kind": "parts", "parts": parts}], made

    def impute(self, imputer: Any, slots: list[Slot], categorical: bool) -> tuple[list[Step], list[Slot]]:
        import numpy as np

        values = fill_values(imputer)
        require(
            is_nan(imputer.missing_values),
            "A SimpleImputer of values other than NaN cannot be imported. Replace them by NaN and fit again.",
        )
        kept = [i for i, value in enumerate(values) if value is not None]
        flags = [int(i) for i in imputer.indicator_.features_] if imputer.add_indicator else []
        texts = categorical or any(isinstance(value, str) for value in values)
        if texts:
            require(not flags, "A SimpleImputer of categories with add_indicator=True cannot be imported.")
            made = [replace(slots[i], fill=values[i]) for i in kept]
            return ([] if len(kept) == len(slots) else [select(kept)]), made
        self.numbers |= {slot.column for slot in slots if slot.column is not None}
        # as the service stores the raw columns: an edge of a bin may equal the mean
        stored = [None if v is None else float(np.float32(v)) for v in values]
        steps: list[Step] = [{"kind": "fill", "values": stored, "flags": flags}]
        if len(kept) < len(values):
            steps.append(select([*kept, *range(len(values), len(values) + len(flags))]))
        return steps, [*(slots[i] for i in kept), *[Slot()] * len(flags)]

    def encode(self, encoder: Any, slots: list[Slot]) -> tuple[list[Step], list[Slot]]:
        """An encoder of categories, which must be raw columns."""
        require(self.is_table, "A pipeline with categories requires a frame. Pass the rows as a frame.")
        name = type(encoder).__name__
        columns = [slot.column for slot in slots if slot.column is not None]
        require(len(columns) == len(slots), f"A {name} of computed features cannot be imported. Use it on columns.")
        for column, categories in zip(columns, encoder.categories_, strict=True):
            known = self.categories.setdefault(column, [])
            listed = [plain_category(value) for value in categories]
            known += [value for value in listed if value is not MISSING and value not in known]
        read = {"OneHotEncoder": one_hot, "OrdinalEncoder": ordinal, "TargetEncoder": target_means}
        tables: list[Step] = []
        kind = "one_hot" if is_a(encoder, "OneHotEncoder") else "lookup"
        function = next(function for kind_name, function in read.items() if is_a(encoder, kind_name))
        made = [function(encoder, i, slot) for i, slot in enumerate(slots)]

        def complete() -> None:
            tables.extend(table(self.categories[column]) for column, (table, _) in zip(columns, made, strict=True))

        self.deferred.append(complete)
        width = sum(outputs for _, outputs in made)
        return [{"kind": kind, "inputs": tables}], [Slot()] * width


Table = Callable[[list[Any]], Step]
"""Makes the table of an encoder, once all values of its column are known."""


def one_hot(encoder: Any, i: int, slot: Slot) -> tuple[Table, int]:
    outputs, groups_unseen = one_hot_outputs(encoder, i)
    kept = [output for output in outputs if not output.dropped]
    places = {value: place for place, output in enumerate(kept) for value in output.values}
    grouped = [place for place, output in enumerate(kept) if len(output.values) > 1]
    unseen = grouped[0] if grouped and groups_unseen else -1
    fill = MISSING if slot.fill is None else plain_category(slot.fill)
    ignored = unseen if encoder.handle_unknown != "error" else -1
    missing = places.get(fill, ignored)

    def table(values: list[Any]) -> Step:
        found = [places.get(value, unseen if value not in listed(encoder, i) else -1) for value in values]
        return {"places": found, "unseen": unseen, "missing": missing, "width": len(kept)}

    return table, len(kept)


def listed(encoder: Any, i: int) -> list[Any]:
    return [plain_category(value) for value in encoder.categories_[i]]


def ordinal(encoder: Any, i: int, slot: Slot) -> tuple[Table, int]:
    rare = encoder.min_frequency is not None or encoder.max_categories is not None
    require(not rare, "An OrdinalEncoder that groups rare values cannot be imported. Use a OneHotEncoder.")
    codes = {value: float(code) for code, value in enumerate(v for v in listed(encoder, i) if v is not MISSING)}
    missing = number(encoder.encoded_missing_value) if MISSING in listed(encoder, i) else None
    given = encoder.unknown_value if encoder.handle_unknown == "use_encoded_value" else None
    return lookup(codes, number(given) or 0.0, missing, slot)


def target_means(encoder: Any, i: int, slot: Slot) -> tuple[Table, int]:
    require(encoder.target_type_ != "multiclass", "A TargetEncoder of several classes cannot be imported.")
    means = dict(zip(listed(encoder, i), map(float, encoder.encodings_[i]), strict=True))
    unseen = float(encoder.target_mean_)
    return lookup(means, unseen, means.pop(MISSING, unseen), slot)


def lookup(numbers: dict[Any, float], unseen: float, missing: float | None, slot: Slot) -> tuple[Table, int]:
    if slot.fill is not None:
        missing = numbers.get(plain_category(slot.fill), unseen)

    def table(values: list[Any]) -> Step:
        return {"values": [numbers.get(v, unseen) for v in values], "unseen": unseen, "missing": missing}

    return table, 1


def read_numeric(transformer: Any, width: int, raw: bool) -> tuple[list[Step], int]:
    """The steps of a transformer of numbers, and the number of its outputs. `raw`: its inputs are raw columns."""
    if is_a(transformer, "StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler"):
        mean, scale = scaling_of(transformer, width)
        steps: list[Step] = [{"kind": "scale", "mean": mean, "scale": scale}]
        if getattr(transformer, "clip", False):
            low, high = getattr(transformer, "feature_range", (-1, 1))
            steps.append({"kind": "clip", "low": float(low), "high": float(high)})
        return steps, width
    if is_a(transformer, "FunctionTransformer"):
        name = getattr(transformer.func, "__name__", type(transformer.func).__name__)
        name = {"absolute": "abs"}.get(name, name)
        ours = name in FUNCTIONS and type(transformer.func).__name__ == "ufunc" and not transformer.kw_args
        require(
            ours, f"A FunctionTransformer of {name!r} cannot be imported. Use one of NumPy's {', '.join(FUNCTIONS)}."
        )
        return [{"kind": "function", "name": name}], width
    if is_a(transformer, "PolynomialFeatures"):
        products = [[i for i, p in enumerate(powers) for _ in range(int(p))] for powers in transformer.powers_]
        return [{"kind": "products", "of": products}], len(products)
    if is_a(transformer, "KBinsDiscretizer"):
        pieces = [bins_of(edges, transformer.encode, raw) for edges in transformer.bin_edges_]
        return [{"kind": "piecewise", "inputs": pieces}], sum(len(piece["coefficients"]) for piece in pieces)
    if is_a(transformer, "SplineTransformer"):
        pieces = [spline_of(spline, transformer) for spline in transformer.bsplines_]
        return [{"kind": "piecewise", "inputs": pieces}], sum(len(piece["coefficients"]) for piece in pieces)
    if is_a(transformer, "Binarizer"):
        edges = [0.0, float(transformer.threshold) + 1e-12 * max(1.0, abs(float(transformer.threshold))), 1.0]
        return [{"kind": "piecewise", "inputs": [bins_of(edges, "ordinal", False)] * width}], width
    if is_a(transformer, "_BasePCA", "TruncatedSVD"):
        return project(transformer)
    if is_a(transformer, "Normalizer"):
        return [{"kind": "normalize", "norm": transformer.norm}], width
    if is_a(transformer, "RBFSampler", "Nystroem"):
        name = type(transformer).__name__
        message = f"A {name} cannot be imported, because Amend draws its own features. Instead, {KERNEL}."
        raise EstimatorUnsupported(message)
    raise EstimatorUnsupported(
        f"{name_of(transformer)} cannot be imported. Replace it with one of the supported steps: {SUPPORTED}."
    )


def project(transformer: Any) -> tuple[list[Step], int]:
    import numpy as np

    matrix = np.asarray(transformer.components_, np.float64)
    if getattr(transformer, "whiten", False):
        matrix = matrix / np.sqrt(np.asarray(transformer.explained_variance_, np.float64))[:, None]
    mean = getattr(transformer, "mean_", None)
    offset = np.zeros(len(matrix)) if mean is None else -matrix @ np.asarray(mean, np.float64)
    return [{"kind": "project", "matrix": matrix.tolist(), "offset": offset.tolist()}], len(matrix)


def select(indices: list[int]) -> Step:
    """The step that keeps some of its inputs."""
    return {"kind": "parts", "parts": [{"inputs": indices, "steps": []}]}


def number(value: Any) -> float | None:
    """A number as JSON has it; None for NaN."""
    return None if is_nan(value) else float(value)
