"""Models: made, looked at, changed, held, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amend import frames, responses
from amend.batches import ArrowArray, ArrowStream
from amend.frame_schema import describe_frame
from amend.sansio import Call, Caller, Flow, Pages, listing, operation, path, without_none

Spec = Mapping[str, Any]


class Models(Caller):
    """The nouns and verbs of models."""

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
        architecture: Spec | None = None,
        regularizer: Spec | None = None,
        loss: Spec | str | None = None,
        class_weight: Mapping[Any, float] | None = None,
        training: Spec | None = None,
        policy: Spec | None = None,
    ) -> Flow[responses.Model]:
        """Create a model; what is not given has defaults. It is trained by its first adaptation.

        Instead of an input, a frame of pandas, polars or pyarrow will do: its columns, their kinds and categories are
        read from it, and the target is the name of a column. ``id``, ``subject`` and ``weight`` name columns that are
        no features, ``target_kind`` says what the target is where its values do not. No row is sent. The model that is
        returned shows what was read; ``amend.read_schema`` does so without making one.

        ``loss`` is for another than the target's own: ``"squared_hinge"`` of yes and no, ``"huber"`` of a number.
        """
        if frames.is_frame(input):
            names = {"id": id, "subject": subject, "weight": weight}
            input, target = describe_frame(input, target, **names, target_kind=target_kind)
        parts: dict[str, Any] = {"architecture": architecture, "regularizer": regularizer, "loss": loss}
        parts |= {"training": training, "policy": policy}
        if class_weight is not None:
            parts["class_weight"] = {str(label): times for label, times in class_weight.items()}
        body = {"name": name, "input": input, "target": target, **without_none(parts)}
        return self.ask(responses.Model, "POST", path("models"), body)

    @listing
    def models(self) -> Pages[responses.Model]:
        """The models that the key can see, by name."""
        return Pages(responses.Model, path("models"))

    @operation
    def model(self, name: str) -> Flow[responses.Model]:
        """Spec, policy, counts, head position, champion and pending changes."""
        return self.ask(responses.Model, "GET", path("models", name))

    @operation
    def change_policy(self, model: str, policy: Spec) -> Flow[responses.Model]:
        """Change some fields of the policy; the others stay."""
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
    ) -> Flow[responses.Changed]:
        """Give the model another regularizer, architecture or loss, other columns or classes; or undo the change at a
        position. A column says in ``was`` how it was called, and in ``default`` what examples from before have in it;
        ``merge`` says which value, or class, stands for one that is gone.
        """
        parts = {"regularizer": regularizer, "architecture": architecture, "loss": loss}
        body = without_none({**parts, "input": input, "target": target, "revert": revert})
        return self.ask(responses.Changed, "POST", path("models", model, "changes"), body)

    @listing
    def changes(self, model: str) -> Pages[responses.Change]:
        """Changes of regularizer, architecture, loss, columns, classes, and corrections of examples, newest first."""
        return Pages(responses.Change, path("models", model, "changes"))

    @operation
    def hold(self, model: str) -> Flow[responses.Model]:
        """Stop what is done by itself: no adaptation, retrain or promotion until ``resume``."""
        return self.ask(responses.Model, "POST", path("models", model, "hold"))

    @operation
    def resume(self, model: str) -> Flow[responses.Resumed]:
        """End a hold; ``job`` does what waited, if anything is due."""
        return self.ask(responses.Resumed, "POST", path("models", model, "resume"))

    @operation
    def delete_model(self, name: str) -> Flow[None]:
        """Delete a model and all it owns."""
        yield from self.send(Call("DELETE", path("models", name)))
