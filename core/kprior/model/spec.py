"""The spec of a model: its types, and questions that the engine asks about it.

`core.models.spec` declares and validates it; this module needs nothing outside its folder, so that a published model
loads without the rest.
"""

from typing import Literal

from .spec_types import Architecture as Architecture
from .spec_types import CategoryColumn as CategoryColumn
from .spec_types import Column as Column
from .spec_types import FrozenEncoder as FrozenEncoder
from .spec_types import Input as Input
from .spec_types import KernelArchitecture as KernelArchitecture
from .spec_types import Loss as Loss
from .spec_types import OwnLoss
from .spec_types import PredictorSpec as PredictorSpec
from .spec_types import Regularizer as Regularizer
from .spec_types import Spec as Spec
from .spec_types import TableInput as TableInput
from .spec_types import Target as Target

DEFAULT_LEAF_DELTA = 300.0
"""Delta of the leaves of trees, if none was chosen: about right for 100 trees and 10 000 to 1 000 000 examples."""

SpecPart = Regularizer | Architecture | Input | Target | Loss
"""A part of a spec that can change."""


def is_network(architecture: Architecture) -> bool:
    """Whether outputs are nonlinear in the weights; all other architectures are GLMs.

    >>> is_network({"kind": "kernel"}), is_network({"kind": "mlp"})
    (False, True)
    """
    return architecture["kind"] not in ("linear", "kernel", "trees")


def frozen_encoder(spec: PredictorSpec) -> FrozenEncoder | None:
    """The frozen encoder of a model, if it has one: it turns raw inputs into features before the engine sees them.

    >>> frozen_encoder({"architecture": {"kind": "linear", "encoder": {"kind": "hashing", "features": 64}}})
    {'kind': 'hashing', 'features': 64}
    """
    architecture = spec["architecture"]
    return architecture.get("encoder") if architecture["kind"] == "linear" else None


def shape_of(given: Input) -> tuple[int, ...]:
    """The shape of one raw input.

    >>> shape_of({"kind": "image", "shape": [1, 28, 28]})
    (1, 28, 28)
    """
    if given["kind"] == "vector":
        return (given["dim"],)
    if given["kind"] == "text":
        return (1,)
    return tuple(given["shape"]) if given["kind"] == "image" else (len(given["columns"]),)


def column_names(given: Input) -> list[str]:
    """Names of the columns of an input: a vector's are its indices, images and texts have none.

    >>> column_names({"kind": "vector", "dim": 3})
    ['0', '1', '2']
    """
    if given["kind"] == "vector":
        return [str(i) for i in range(given["dim"])]
    return [column["name"] for column in given["columns"]] if given["kind"] == "table" else []


def dtype_of(given: Input) -> Literal["float32", "uint8", "object"]:
    """Type in which the numbers of examples are stored; texts are objects (`text_storage.py`)."""
    if given["kind"] == "text":
        return "object"
    return given.get("dtype", "float32") if given["kind"] == "image" else "float32"


def class_weights(target: Target, given: dict[str, float]) -> list[float]:
    """The weight of each class, in the order of the target's values.

    >>> class_weights({"kind": "binary"}, {"1": 5.0})
    [1.0, 5.0]
    """
    return [float(given.get(str(value), 1.0)) for value in values_of(target)]


def values_of(target: Target) -> list[int | str]:
    """The values of a target that is one or some of several; none for numbers and counts.

    >>> values_of({"kind": "classes", "values": ["cat", "dog"]}), values_of({"kind": "binary"})
    (['cat', 'dog'], [0, 1])
    """
    if target["kind"] == "classes" or target["kind"] == "labels":
        return target["values"]
    return [0, 1] if target["kind"] == "binary" else []


def loss_of(spec: PredictorSpec) -> Loss:
    """The loss of a model: the one in its spec, or the default of its target."""
    return spec.get("loss") or default_loss(spec["target"])


def gives_scores(spec: PredictorSpec) -> bool:
    """Whether a model gives scores and no probabilities, as with a squared hinge loss."""
    return loss_of(spec)["kind"] == "squared_hinge"


def default_loss(target: Target) -> OwnLoss:
    """The default loss of a target.

    >>> default_loss({"kind": "number"})
    {'kind': 'squared'}
    """
    kind = target.get("kind")
    if kind not in ("binary", "classes", "labels", "number", "count"):
        raise ValueError(f"Unknown target kind {kind!r}. Choose one of: binary, classes, labels, number, count.")
    return {"kind": "squared" if kind == "number" else "poisson" if kind == "count" else "log"}
