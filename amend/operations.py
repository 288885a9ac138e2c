"""What can be asked of the service: every endpoint, described once for both clients.

A noun gets (``client.model("churn")``), its plural walks through all (``for model in client.models()``), a verb acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx

from amend import frames, responses
from amend.batches import ArrowArray, ArrowStream, Examples
from amend.downloads import Downloads
from amend.erasures import Erasures
from amend.errors import JobFailed, UnreachableError
from amend.frame_schema import describe_frame
from amend.http import HttpMethods
from amend.imports import Imports
from amend.sansio import Call, Flow, Pages, list_of, listing, operation, path, without_none
from amend.waiting import id_of, wait_operation, wait_until_ended

Spec = Mapping[str, Any]

# Seconds of one long poll. It is answered when the job ends; with a callback this is how often it is called.
LONG_POLL, REPORT_EVERY = 30, 1


class Operations(Erasures, Downloads, Imports, HttpMethods):
    """One method for each thing to do."""

    # models

    @operation
    def create_model(
        self,
        name: str,
        input: Spec | ArrowStream | ArrowArray,
        target: Spec | str,
        *,
        id: str | None = None,
        subject: str | None = None,
        target_kind: str | None = None,
        architecture: Spec | None = None,
        regularizer: Spec | None = None,
        training: Spec | None = None,
        policy: Spec | None = None,
    ) -> Flow[responses.Model]:
        """Create a model; what is not given has defaults. It is trained by its first adaptation.

        Instead of an input, a frame of pandas, polars or pyarrow will do: its columns, their kinds and categories are
        read from it, and the target is the name of a column. ``id`` and ``subject`` name columns that are no features,
        ``target_kind`` says what the target is where its values do not. No row is sent. The model that is returned
        shows what was read; ``amend.read_schema`` does so without making one.
        """
        if frames.is_frame(input):
            input, target = describe_frame(input, target, id=id, subject=subject, target_kind=target_kind)
        parts = {"architecture": architecture, "regularizer": regularizer, "training": training, "policy": policy}
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
        input: Spec | None = None,
        target: Spec | None = None,
        revert: int | None = None,
    ) -> Flow[responses.Changed]:
        """Give the model another regularizer or architecture, other columns or classes; or undo the change at a
        position. A column says in ``was`` how it was called, and in ``default`` what examples from before have in it;
        ``merge`` says which value, or class, stands for one that is gone.
        """
        parts = {"regularizer": regularizer, "architecture": architecture, "input": input, "target": target}
        body = without_none({**parts, "revert": revert})
        return self.ask(responses.Changed, "POST", path("models", model, "changes"), body)

    @listing
    def changes(self, model: str) -> Pages[responses.Change]:
        """Changes of regularizer, architecture, columns and classes, and corrections of examples, the newest first."""
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

    # examples

    @operation
    def add_examples(
        self,
        model: str,
        examples: Examples,
        *,
        id: str | None = None,
        subject: str | None = None,
        target: str | None = None,
    ) -> Flow[responses.Added]:
        """Add examples: a pandas frame or another table, columns (``{"id": ids, "x": array, "y": array}``), or an
        iterable of examples as REST has them (``{"id": "a1", "subject": "user-7", "x": [...], "y": 1}``).

        Of a frame, ``id``, ``subject`` and ``target`` name the columns that are called ``id``, ``subject`` and ``y`` in
        examples, where they have other names.

        They go out in batches, each stored whole or not at all; an iterable is consumed as they do. If one is refused,
        those before it are stored, and adding all of them again does no harm.
        """
        if names := without_none({"id": id, "subject": subject, "y": target}):
            examples = frames.name_columns(examples, names)
        added = responses.Added()
        for response in (yield from self.send_batches("POST", model, examples)):
            added = added + self.read(responses.Added, response)
        return added

    @operation
    def replace_example(
        self, model: str, id: str, x: Any, y: Any, *, subject: str | None = None, split: str | None = None
    ) -> Flow[responses.Replaced]:
        """Correct an example in force: from one position on, this one is in its place, and the model is adapted.

        Without ``subject`` or ``split`` it keeps its own. The same content again does nothing.
        """
        body = {"x": x, "y": y, **without_none({"subject": subject, "split": split})}
        return self.ask(responses.Replaced, "PUT", path("models", model, "examples", id), body)

    @operation
    def replace_examples(self, model: str, examples: Examples) -> Flow[responses.Replaced]:
        """Correct examples in force, by their ids, in any form that ``add_examples`` takes.

        They go out in batches; of each all are corrected, or none. If one is refused, those before it are corrected,
        and correcting all of them again does no harm.
        """
        replaced = responses.Replaced()
        for response in (yield from self.send_batches("PUT", model, examples)):
            replaced = replaced + self.read(responses.Replaced, response)
        return replaced

    @listing
    def examples(self, model: str) -> Pages[responses.Example]:
        """The examples in force, in the order they came."""
        return Pages(responses.Example, path("models", model, "examples"), limit=1000)

    @operation
    def example(self, model: str, id: str) -> Flow[responses.Example]:
        """One example in force."""
        return self.ask(responses.Example, "GET", path("models", model, "examples", id))

    @operation
    def remove_examples(
        self, model: str, ids: Iterable[str] | None = None, *, subjects: Iterable[str] | None = None
    ) -> Flow[responses.Removed]:
        """Remove examples by their ids or the subjects they are about, and have the model forget them."""
        given = {"ids": ids, "subjects": subjects}
        body = {name: list_of(values) for name, values in given.items() if values is not None}
        return self.ask(responses.Removed, "POST", path("models", model, "removals"), body)

    @operation
    def removal(self, model: str, id: str) -> Flow[responses.Removal]:
        """One removal."""
        return self.ask(responses.Removal, "GET", path("models", model, "removals", id))

    # work

    @operation
    def adapt(self, model: str) -> Flow[responses.Job]:
        """Adapt the model to all changes so far. The first time, this trains it."""
        return self.ask(responses.Job, "POST", path("models", model, "adaptations"))

    @operation
    def retrain(self, model: str) -> Flow[responses.Job]:
        """Retrain from scratch, and compare with the adapted model at the same position."""
        return self.ask(responses.Job, "POST", path("models", model, "retrains"))

    @operation
    def job(self, job: responses.Job | str, *, wait: float | None = None) -> Flow[responses.Job]:
        """One job as it stands; with ``wait``, when it has ended or after so many seconds."""
        return self.ask(responses.Job, "GET", path("jobs", id_of(job)), wait=wait)

    @listing
    def jobs(
        self, *, model: str | None = None, state: str | None = None, kind: str | None = None
    ) -> Pages[responses.Job]:
        """Jobs, the newest first."""
        return Pages(responses.Job, path("jobs"), without_none({"model": model, "state": state, "kind": kind}))

    @wait_operation
    def wait(
        self,
        job: responses.Job | str | None,
        *,
        progress: Callable[[responses.Job], object] | None = None,
        timeout: float | None = None,
    ) -> Flow[responses.Job | None]:
        """A job, once it has succeeded; None for None, where there was nothing to do. ``progress`` is called with it,
        every second.

        JobFailed if it failed or was cancelled; TimeoutError after ``timeout`` seconds, while the job goes on.
        """
        if job is None:
            return None
        every = LONG_POLL if progress is None else REPORT_EVERY
        place = path("jobs", id_of(job))
        found = yield from wait_until_ended(
            lambda seconds: self.ask(responses.Job, "GET", place, wait=seconds), every, progress, timeout
        )
        if found.state != "succeeded":
            raise JobFailed(found)
        return found

    @operation
    def cancel(self, job: responses.Job | str) -> Flow[responses.Job]:
        """Cancel a job: a queued one ends at once, a running one is asked to stop."""
        return self.ask(responses.Job, "POST", path("jobs", id_of(job), "cancel"))

    # versions

    @listing
    def versions(self, model: str) -> Pages[responses.Version]:
        """Versions, the newest first."""
        return Pages(responses.Version, path("models", model, "versions"))

    @operation
    def version(self, model: str, version: int) -> Flow[responses.Version]:
        """One version: metrics, certificate, cost."""
        return self.ask(responses.Version, "GET", path("models", model, "versions", version))

    @operation
    def promote(self, model: str, version: int) -> Flow[responses.Promoted]:
        """Make a version the champion. Promoting an older one is the rollback, and holds the model until ``resume``."""
        return self.ask(responses.Promoted, "POST", path("models", model, "versions", version, "promote"))

    @operation
    def compare(self, model: str, a: int, b: int) -> Flow[responses.SideBySide]:
        """Two versions side by side: specs, figures and predictions on the holdout, coefficients."""
        return self.ask(responses.SideBySide, "GET", path("models", model, "versions", a, "compare", b))

    @listing
    def promotions(self, model: str) -> Pages[responses.Promotion]:
        """What was champion when, the newest first."""
        return Pages(responses.Promotion, path("models", model, "promotions"))

    @listing
    def comparisons(self, model: str) -> Pages[responses.Comparison]:
        """Adapted versions next to full retrains at the same positions, the newest first."""
        return Pages(responses.Comparison, path("models", model, "comparisons"))

    @operation
    def predict(self, model: str, inputs: Any, *, version: int | None = None) -> Flow[responses.Predictions]:
        """Predict with the champion, or with the version that is named.

        Inputs are a list, a NumPy array, or a frame of pandas, polars or pyarrow, of any length. A table's columns are
        found by their names: ValueError if one is missing, or unknown. Of a vector they are taken in their order.
        ``id``, ``subject``, ``y`` and ``split`` are passed over.
        """
        place = path("models", model, "predictions")
        if not frames.is_frame(inputs):
            body = {"inputs": inputs, **without_none({"version": version})}
            return (yield from self.ask(responses.Predictions, "POST", place, body))
        described = (yield from self.ask(responses.Model, "GET", path("models", model))).input
        found: list[responses.Prediction] = []
        for some in frames.read_inputs(inputs, model, described):
            body = {"inputs": some, **without_none({"version": version})}
            answer = yield from self.ask(responses.Predictions, "POST", place, body)
            found += answer.outputs
            version = answer.version  # all by the same one, whatever becomes champion meanwhile
        if version is None:
            raise ValueError("the frame has no rows")
        return responses.Predictions(version, found)

    # keys and operations

    @operation
    def create_key(
        self, name: str, scopes: Iterable[str], models: Iterable[str] | None = None
    ) -> Flow[responses.IssuedKey]:
        """Issue a key, for all models or some. Keep the answer: the service stores a hash only."""
        reach = None if models is None else list_of(models)
        body = {"name": name, "scopes": list_of(scopes), "models": reach}
        return self.ask(responses.IssuedKey, "POST", path("keys"), body)

    @listing
    def keys(self) -> Pages[responses.Key]:
        """The keys in use."""
        return Pages(responses.Key, path("keys"))

    @operation
    def revoke_key(self, key: responses.Key | str) -> Flow[None]:
        """Revoke a key: it is refused from then on."""
        yield from self.send(Call("DELETE", path("keys", id_of(key))))

    @operation
    def readiness(self) -> Flow[responses.Readiness]:
        """Whether database, broker, worker and MLflow are there, and which is not. Asked once, not repeated."""
        outcome = yield Call("GET", "/readyz")
        if isinstance(outcome, httpx.Response):
            return self.read(responses.Readiness, outcome)
        raise UnreachableError(f"cannot reach {self.url}: {outcome}")
