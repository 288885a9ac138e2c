"""Importing a fitted model of another library."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from amend import estimators, example_batches, responses
from amend.client_methods import operation
from amend.errors import Conflict, EstimatorUnsupported, Unavailable, UnreachableError
from amend.estimators import mlflow_models
from amend.operations.encoders import Encoders
from amend.operations.examples import ExampleOperations
from amend.requests import Flow, make_call, path, without_none

Spec = Mapping[str, Any]


class ImportOptions(TypedDict, total=False):
    """Optional fields of an imported model. Those that are missing or None have defaults."""

    training: Spec | None
    policy: Spec | None
    trained_on: Literal["other", "examples"] | None


class Imports(ExampleOperations, Encoders):
    @operation
    def import_model(
        self,
        name: str,
        estimator: Any,
        examples: Any,
        *,
        holdout: Any = None,
        target: str = "y",
        outputs: Spec | None = None,
        regularizer: Spec | None = None,
        **options: Unpack[ImportOptions],
    ) -> Flow[responses.Job]:
        """Create a model whose first version is a fitted estimator.

        Supported are scikit-learn's LogisticRegression, SGDClassifier, LinearSVC, RidgeClassifier, LinearRegression,
        Ridge, PoissonRegressor, MLPClassifier and MLPRegressor; a Pipeline of common transformers that ends in one of
        them, also inside a GridSearchCV or a TransformedTargetRegressor of a logarithm; and a torch Sequential.
        Boosters of LightGBM and XGBoost, and scikit-learn's gradient boosting, random forests, extra trees and decision
        trees become models with the architecture ``trees``. The probabilities of three or more classes of a forest are
        not sums over leaves, so the service trains the head of such a forest.

        An address of MLflow (``models:/churn/3``) is loaded on this machine, with the tracking server that MLflow is
        configured for. Loading a model runs code from it, so only load models that you trust.

        ``examples`` are the rows that the estimator was fitted on: a frame, or columns (``{"x": array, "y": array}``).
        ``holdout`` are the rows of a test set, in the same form; the model is evaluated on them and never trained on
        them. ``target`` is the name of the target column. ``id``, ``subject``, ``weight`` and ``split`` are read as by
        `add_examples`; without them, rows are numbered and all are used for training. For a torch module, pass its
        target as ``outputs`` (``{"kind": "classes", "values": [...]}``) and its penalty as ``regularizer``. Its
        layers before the last Linear become an ONNX encoder with a certified head if all of them are frozen
        (``requires_grad=False``).

        Steps and frozen layers that become an encoder count as fitted on the examples, so that an erasure requires new
        ones. Pass ``trained_on="other"`` if they have seen none of the examples, such as layers that were pretrained.

        Returns the job that evaluates the estimator with one pass over the rows. The first version has its weights and
        gives its predictions; the certificate says how far it is from the optimum. Nothing is pickled. If a request is
        rejected, the model is deleted again; if the connection breaks, repeating the call continues the import.
        """
        if mlflow_models.is_uri(estimator):
            estimator = mlflow_models.load(estimator)
        elif isinstance(estimator, str):
            raise EstimatorUnsupported(f"{estimator!r} is not an address of MLflow. Use models:/NAME/VERSION.")
        inputs = estimators.describe_inputs(examples, target)
        withheld = None if holdout is None else estimators.describe_inputs(holdout, target, split="holdout")
        fitted = estimators.compose(estimator, inputs, outputs, None if regularizer is None else dict(regularizer))
        trained_on = options.pop("trained_on", None)
        if trained_on is not None:
            fitted.state_origin(trained_on)
        if fitted.content is not None:
            uploaded = yield from Encoders.upload_encoder.make(
                self, fitted.content, trained_on=trained_on or "examples"
            )
            fitted.architecture["encoder"]["digest"] = uploaded.digest
        body = {
            **{"name": name, "input": fitted.input, "target": fitted.target},
            **{"architecture": fitted.architecture, "regularizer": fitted.regularizer},
            **without_none({"loss": fitted.loss, "class_weight": fitted.class_weight, **options}),
        }
        created = yield from self.begin_import(body)
        try:
            # Held, so that the policy does not train the model on the first batches.
            yield from self.ask(responses.Model, "POST", path("models", name, "hold"))
            for rows in (fitted.examples, fitted.select(withheld)):
                if rows is not None:
                    yield from self.send_batches(responses.Added, "POST", name, example_batches.split(rows))
            yield from self.ask(responses.Resumed, "POST", path("models", name, "resume"))
            weights = fitted.weights if fitted.tensors is None else fitted.tensors
            return (yield from Imports.import_weights.make(self, name, weights, fitted.units, fitted.splits))
        except Exception as error:
            if created and not isinstance(error, UnreachableError | Unavailable):
                yield from self.send(make_call("DELETE", path("models", name)))
            raise

    def begin_import(self, body: Spec) -> Flow[bool]:
        """Create the model, unless an interrupted call did so already. Returns whether it is new."""
        try:
            yield from self.ask(responses.Model, "POST", path("models"), body)
        except Conflict as error:
            if error.code != "model_exists":
                raise
            found = yield from self.ask(responses.Model, "GET", path("models", body["name"]))
            parts = {"input": found.input, "target": found.target}
            parts |= {"architecture": found.architecture, "regularizer": found.regularizer}
            if "loss" in body:
                parts["loss"] = found.loss["kind"]
            if found.champion is not None or not all(matches(found, body[name]) for name, found in parts.items()):
                raise
            return False
        return True

    @operation
    def import_weights(
        self,
        model: str,
        weights: Sequence[float] | bytes | None = None,
        units: Mapping[str, Sequence[float]] | None = None,
        splits: Spec | None = None,
    ) -> Flow[responses.Job]:
        """Create the first version of a model from its flat weights, or from the bytes of a safetensors file with the
        weights ``w`` and, for a network, its buffers (``body.NAME``). ``units`` are the ``mean`` and ``scale`` of the
        number columns of a table, ``splits`` those of trees, whose weights may be left out: the service then trains
        the head."""
        given = {"tensors": b64encode(weights).decode()} if isinstance(weights, bytes) else {"weights": weights}
        body = without_none({**given, "units": units, "splits": splits})
        return self.ask(responses.Job, "POST", path("models", model, "imports"), body)


def matches(found: Any, given: Any) -> bool:
    """Whether a part of a model equals the requested one, apart from defaults that the service adds.

    >>> matches({"kind": "linear", "degree": 1}, {"kind": "linear"}), matches({"kind": "mlp"}, {"kind": "linear"})
    (True, False)
    """
    if isinstance(given, Mapping):
        return isinstance(found, Mapping) and all(matches(found.get(name), value) for name, value in given.items())
    if isinstance(given, list | tuple):
        return isinstance(found, list) and len(found) == len(given) and all(map(matches, found, given))
    return bool(found == given)
