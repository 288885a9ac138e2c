"""Importing a fitted model of another library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amend import estimators, example_batches, responses
from amend.client_methods import operation
from amend.errors import Conflict, Unavailable, UnreachableError
from amend.operations.examples import ExampleOperations
from amend.requests import Flow, make_call, path, without_none

Spec = Mapping[str, Any]


class Imports(ExampleOperations):
    @operation
    def import_model(
        self,
        name: str,
        estimator: Any,
        examples: Any,
        *,
        target: str = "y",
        outputs: Spec | None = None,
        regularizer: Spec | None = None,
        training: Spec | None = None,
        policy: Spec | None = None,
    ) -> Flow[responses.Job]:
        """Create a model whose first version is a fitted estimator.

        Supported are scikit-learn's LogisticRegression, LinearSVC, LinearRegression, Ridge, PoissonRegressor,
        MLPClassifier and MLPRegressor; a Pipeline of StandardScaler, OneHotEncoder and ColumnTransformer that ends in
        one of them; and a torch Sequential of Linear and ReLU.

        ``examples`` are the rows that the estimator was fitted on: a frame, or columns (``{"x": array, "y": array}``).
        ``target`` is the name of the target column. ``id``, ``subject``, ``weight`` and ``split`` are read as by
        `add_examples`; without them, rows are numbered and all are used for training. For a torch module, pass its
        target as ``outputs`` (``{"kind": "classes", "values": [...]}``) and its penalty as ``regularizer``.

        Returns the job that evaluates the estimator with one pass over the rows. Nothing is pickled. If a request is
        rejected, the model is deleted again; if the connection breaks, repeating the call continues the import.
        """
        inputs = estimators.describe_inputs(examples, target)
        fitted = estimators.compose(estimator, inputs, outputs, None if regularizer is None else dict(regularizer))
        body = {
            **{"name": name, "input": fitted.input, "target": fitted.target},
            **{"architecture": fitted.architecture, "regularizer": fitted.regularizer},
            **without_none(
                {"loss": fitted.loss, "class_weight": fitted.class_weight, "training": training, "policy": policy}
            ),
        }
        created = yield from self.begin_import(body)
        try:
            # Held, so that the policy does not train the model on the first batches.
            yield from self.ask(responses.Model, "POST", path("models", name, "hold"))
            yield from self.send_batches(responses.Added, "POST", name, example_batches.split(fitted.examples))
            yield from self.ask(responses.Resumed, "POST", path("models", name, "resume"))
            return (yield from Imports.import_weights.make(self, name, fitted.weights, fitted.units))
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
        self, model: str, weights: Sequence[float], units: Mapping[str, Sequence[float]] | None = None
    ) -> Flow[responses.Job]:
        """Create the first version of a model from its flat weights. ``units`` are the ``mean`` and ``scale`` of the
        number columns of a table."""
        body = {"weights": weights, **without_none({"units": units})}
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
