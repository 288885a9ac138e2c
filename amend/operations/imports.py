"""Bringing a model that somebody already has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amend import batches, estimators, responses
from amend.errors import Conflict, Unavailable, UnreachableError
from amend.operations.examples import ExampleOperations
from amend.sansio import Flow, make_call, operation, path, without_none

Spec = Mapping[str, Any]


class Imports(ExampleOperations):
    """From an estimator, or from bare numbers."""

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
        """Create a model whose first version is a fitted estimator: scikit-learn's LogisticRegression, LinearSVC,
        LinearRegression, Ridge, PoissonRegressor, MLPClassifier or MLPRegressor, a Pipeline of StandardScaler,
        OneHotEncoder and ColumnTransformer that ends in one of them, or torch's Sequential of Linear and ReLU.

        ``examples`` are the rows it was fitted on: a frame, or columns (``{"x": array, "y": array}``), with ``target``
        the name of the column that it predicts. ``id``, ``subject``, ``weight`` and ``split`` are as for
        `add_examples`; without them rows are numbered, and all are trained on. Of a torch module say what it predicts
        (``outputs={"kind": "classes", "values": [...]}``) and how it is penalised (``regularizer``).

        The answer is the job that measures the estimator on these rows, by one pass. Nothing is pickled. If something
        is refused, no model is left behind; a call that broke off goes on when it is repeated.
        """
        inputs = estimators.describe_inputs(examples, target)
        made = estimators.compose(estimator, inputs, outputs, None if regularizer is None else dict(regularizer))
        body = {
            **{"name": name, "input": made.input, "target": made.target},
            **{"architecture": made.architecture, "regularizer": made.regularizer},
            **without_none(
                {"loss": made.loss, "class_weight": made.class_weight, "training": training, "policy": policy}
            ),
        }
        created = yield from self.begin_import(body)
        try:
            # held: the policy would have it trained on what is there
            yield from self.ask(responses.Model, "POST", path("models", name, "hold"))
            yield from self.send_batches(responses.Added, "POST", name, batches.split(made.examples))
            yield from self.ask(responses.Resumed, "POST", path("models", name, "resume"))
            return (yield from Imports.import_weights.make(self, name, made.weights, made.units))
        except Exception as error:
            if created and not isinstance(error, UnreachableError | Unavailable):
                yield from self.send(make_call("DELETE", path("models", name)))
            raise

    def begin_import(self, body: Spec) -> Flow[bool]:
        """Create the model, unless a call before this one did and broke off; whether it is new."""
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
        """Make the first version of a model of its weights, flat; ``units`` are ``mean`` and ``scale`` of a table's
        number columns."""
        body = {"weights": weights, **without_none({"units": units})}
        return self.ask(responses.Job, "POST", path("models", model, "imports"), body)


def matches(found: Any, given: Any) -> bool:
    """Whether a part of a model is what was asked for; the service adds defaults.

    >>> matches({"kind": "linear", "degree": 1}, {"kind": "linear"}), matches({"kind": "mlp"}, {"kind": "linear"})
    (True, False)
    """
    if isinstance(given, Mapping):
        return isinstance(found, Mapping) and all(matches(found.get(name), value) for name, value in given.items())
    if isinstance(given, list | tuple):
        return isinstance(found, list) and len(found) == len(given) and all(map(matches, found, given))
    return bool(found == given)
