"""Creating, changing, holding and deleting models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack

from amend import dataframes, responses
from amend.client_methods import listing, operation
from amend.dataframe_schema import describe_frame
from amend.example_batches import ArrowArray, ArrowStream
from amend.requests import Call, Caller, Flow, Pages, list_of, path, without_none

Spec = Mapping[str, Any]

WindowKind = Literal["day", "hour", "week", "job"]


class ColumnChanges(TypedDict, total=False):
    """Columns of a table to add or drop."""

    add_columns: list[Spec] | None
    drop_columns: Iterable[str] | None


class ModelOptions(TypedDict, total=False):
    """Optional fields of a new model. Those that are missing or None have defaults."""

    architecture: Spec | None
    regularizer: Spec | None
    loss: Spec | str | None
    """Other than the default of the target: ``"squared_hinge"`` for binary targets, ``"huber"`` for numbers."""
    class_weight: Mapping[Any, float] | None
    training: Spec | None
    policy: Spec | None


class Models(Caller):
    @operation
    def create_model(
        self,
        name: str,
        input: Spec | ArrowStream | ArrowArray,
        target: Spec | str,
        *,
        id: str | None = None,
        subject: str | None = None,
        weight: str | None = None,
        target_kind: str | None = None,
        **options: Unpack[ModelOptions],
    ) -> Flow[responses.Model]:
        """Create a model. Its first adaptation trains it.

        ``input`` is an input spec, or a frame of pandas, polars or pyarrow. From a frame, the columns with their types
        and categories are inferred, and ``target`` is the name of a column; ``id``, ``subject`` and ``weight`` name
        columns that are not features, and ``target_kind`` overrides the kind of the target. No rows are sent. The
        returned model shows what was inferred; ``amend.read_schema`` shows it without creating a model.

        The other options are the fields of the REST API (`ModelOptions`).
        """
        if dataframes.is_frame(input):
            names = {"id": id, "subject": subject, "weight": weight}
            input, target = describe_frame(input, target, **names, target_kind=target_kind)
        body = {"name": name, "input": input, "target": target, **without_none(options)}
        if weights := options.get("class_weight"):
            body["class_weight"] = {str(label): weight for label, weight in weights.items()}
        return self.ask(responses.Model, "POST", path("models"), body)

    @listing
    def models(self) -> Pages[responses.Model]:
        """Iterate over the models that the key may see, by name."""
        return Pages(responses.Model, path("models"))

    @operation
    def model(self, name: str) -> Flow[responses.Model]:
        """One model: spec, policy, counts, head position, champion and pending changes."""
        return self.ask(responses.Model, "GET", path("models", name))

    @operation
    def change_policy(self, model: str, policy: Spec) -> Flow[responses.Model]:
        """Change the given fields of the policy."""
        return self.ask(responses.Model, "PATCH", path("models", model), {"policy": policy})

    @operation
    def change_model(
        self,
        model: str,
        *,
        regularizer: Spec | None = None,
        architecture: Spec | None = None,
        loss: Spec | str | None = None,
        input: Spec | None = None,
        target: Spec | None = None,
        revert: int | None = None,
        **columns: Unpack[ColumnChanges],
    ) -> Flow[responses.Changed]:
        """Change the regularizer, architecture, loss, columns or classes, or revert the change at a position.

        ``add_columns`` and ``drop_columns`` change single columns of a table; a dropped column that is added again has
        its values again. ``input`` and ``target`` are complete specs; columns that ``input`` leaves out must be named
        in ``drop_columns``. In a column, ``was`` is its previous name and ``default`` the value for earlier examples;
        ``merge`` maps dropped values or classes to those that replace them.
        """
        parts = {"regularizer": regularizer, "architecture": architecture, "loss": loss, "input": input}
        if (dropped := columns.get("drop_columns")) is not None:
            columns = {**columns, "drop_columns": list_of(dropped)}
        body = without_none({**parts, **columns, "target": target, "revert": revert})
        return self.ask(responses.Changed, "POST", path("models", model, "changes"), body)

    @listing
    def changes(self, model: str) -> Pages[responses.Change]:
        """Iterate over changes of the model and corrections of examples, newest first."""
        return Pages(responses.Change, path("models", model, "changes"))

    @operation
    def drift(self, model: str) -> Flow[responses.Drift]:
        """Compare recent examples with those of the last full training: columns by descending PSI, and predictions."""
        return self.ask(responses.Drift, "GET", path("models", model, "drift"))

    @listing
    def quality(self, model: str, window: WindowKind = "day") -> Pages[responses.QualityWindow]:
        """Iterate over test-then-train metrics, oldest first: predictions for examples before the model learnt them."""
        return Pages(responses.QualityWindow, path("models", model, "quality"), {"window": window})

    @operation
    def hold(self, model: str) -> Flow[responses.Model]:
        """Suspend automatic adaptations, retrains and promotions until ``resume``."""
        return self.ask(responses.Model, "POST", path("models", model, "hold"))

    @operation
    def resume(self, model: str) -> Flow[responses.Resumed]:
        """End a hold. ``job`` is the id of the job that processes the pending changes; None if there are none."""
        return self.ask(responses.Resumed, "POST", path("models", model, "resume"))

    @operation
    def delete_model(self, name: str) -> Flow[None]:
        """Delete a model with its examples, versions and weights."""
        yield from self.send(Call("DELETE", path("models", name)))
