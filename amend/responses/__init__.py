"""Responses of the service as typed objects, with the names of the REST API.

Fields that this version of the client does not know are ignored, so that it keeps working with a newer service; states
and other words are plain text for the same reason. Generated from the OpenAPI document by tools/client_types.py: do not
edit this file; add methods in methods.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NotRequired, TypedDict

import msgspec

from amend.responses.base import Page as Page
from amend.responses.base import Response
from amend.responses.base import ResponseList as ResponseList
from amend.responses.methods import (
    AddedMethods,
    AnalysisMethods,
    ErasureMethods,
    JobMethods,
    PredictionsMethods,
    ReplacedMethods,
)


class Actor(Response, frozen=True, kw_only=True):
    """The API key that performed an action."""

    id: str
    name: str | None = None
    """Null if the key is not in the database, as after a restore from a backup."""


class Added(AddedMethods, frozen=True, kw_only=True):
    """Result of adding a batch of examples. A batch is stored completely or not at all."""

    accepted: int = 0
    """Number of examples that were stored, with or without a label."""
    duplicates: int = 0
    """Number of examples that had been stored before, with the same content."""
    first_position: int | None = None
    """First position that the batch took in the ledger; null if it took none, as examples without a label do."""
    last_position: int | None = None
    quarantined: int = 0
    """Number of stored examples in quarantine, because they are about people whose data was erased; missing if zero."""


class Analysis(AnalysisMethods, frozen=True, kw_only=True):
    """An analysis at one position of the ledger."""

    id: str
    model: str
    kind: str
    request: dict[str, Any]
    """The parameters, without data that the caller sent."""
    position: int | None = None
    """The ledger position that was analysed; null until the analysis has finished."""
    version: int | None = None
    """The newest version at that position."""
    result: dict[str, Any] | None = None
    """Depends on the kind; null until the analysis has finished."""
    cost: dict[str, float] | None = None
    """`seconds`, and `data_passes` over the training examples."""
    job: str | None = None
    """Id of the job that computes it; null if no pass was needed."""
    created_at: datetime
    finished_at: datetime | None = None


class Audit(Response, frozen=True, kw_only=True):
    """Measurements of an adapted network, for which no bound exists, next to the previous version and a reference.

    The reference is a small network that never saw the removed examples, so its predictions for them are what to
    expect of a retrain. Losses are relative to the smallest possible loss (for counts, half the deviance). A
    metric is null if there were no examples to measure it on."""

    visits: int = 0
    """Number of single-example gradients computed to make the network, including those of the reference network."""
    unseen: int = 0
    """Number of unseen examples that the metrics of unseen examples were computed on."""
    unseen_loss: float | None = None
    """Mean loss on the unseen examples."""
    unseen_loss_before: float | None = None
    """Mean loss of the previous version on the unseen examples."""
    unseen_error: float | None = None
    """Standard error of the difference between `unseen_loss` and `unseen_loss_before`."""
    retained_loss: float | None = None
    """Mean loss on a sample of the retained training examples."""
    retained_loss_before: float | None = None
    """Mean loss of the previous version on the same sample."""
    removed: int = 0
    """Number of removed examples that the metrics of removed examples were computed on."""
    removed_loss: float | None = None
    """Mean loss on the removed examples."""
    expected_loss: float | None = None
    """Lowest mean loss on the removed examples to expect of a network that never saw them."""
    capped_loss: float | None = None
    """Mean loss on the removed examples, each at most the loss of a constant prediction: beyond that, an example is
    simply unknown."""
    expected_capped_loss: float | None = None
    """The same mean to expect of a network that never saw the removed examples."""
    capped_loss_error: float | None = None
    """Standard error of the difference between `capped_loss` and `expected_capped_loss`."""
    membership_auc: float | None = None
    """Probability that a removed example has a smaller loss than an unseen one. The further it is from
    `expected_auc`, the better removed examples can be told apart from examples that were never seen."""
    expected_auc: float | None = None
    """The same probability for the reference network, which never saw the removed examples."""
    auc_error: float | None = None
    """Standard error of the difference between `membership_auc` and `expected_auc`."""
    forgotten_label_rate: float | None = None
    """Fraction of the removed examples for which the network still predicts the label they had (classes only)."""
    expected_label_rate: float | None = None
    """The fraction to expect of a network that never saw the removed examples."""
    ranked_first: float | None = None
    """Probability that the output for a class without remaining examples is larger for a removed example of this
    class than for an unseen example. A class whose output was only suppressed still ranks its examples first."""
    expected_ranked_first: float | None = None
    """The same probability for the reference network."""
    holdout: bool = True
    """Whether the unseen examples belong to the holdout; otherwise they are retained examples, which the previous
    version was trained on."""
    altered: bool = False
    """Whether the regularizer or the architecture changed."""
    fit: bool = True
    """Whether the reference network was accurate enough to say what to expect."""
    shrunk: float = 1.0
    """Number of training examples of the previous version, relative to the present number, if it was larger: with
    fewer examples, a retrain would have a larger loss as well."""


class AuditEntry(Response, frozen=True, kw_only=True):
    """An action that changed, exported or looked up personal data, or changed who may do so.

    It identifies no person: it contains no subject, no id of an example and no values."""

    id: int
    at: datetime
    actor: Actor
    action: str
    model: str | None = None
    version: int | None = None
    position: int | None = None
    """Of an export: the ledger position that it shows."""
    erasure: str | None = None
    """Id of the erasure request."""
    job: str | None = None
    """Id of the job that the action started."""
    object: str | None = None
    """Id of the key or webhook that the action is about."""
    client: str | None = None
    """IP address of the client. Behind a proxy, this requires the setting AMEND_TRUSTED_PROXIES."""
    request_id: str | None = None
    """The `X-Request-ID` of the request, which is also in the log."""
    counts: dict[str, int]
    """Numbers in the response, such as those of examples, by the name of the field."""


class Certificate(Response, frozen=True, kw_only=True):
    """How far a version can be from a full retrain on the same data."""

    kind: str
    """`bound` for linear and kernel models, `measured` for networks."""
    gradient_norm: float | None = None
    """Upper bound on the norm of the gradient of the training objective at the version's weights; null for networks."""
    passes: int = 0
    """Number of passes over the training examples that the certificate took."""
    bound: float | None = None
    """Upper bound on |w - w_retrain|; null for networks, and if the weights are too far away to bound it."""
    relative: float | None = None
    """bound / |w|."""
    prediction_bound: float | None = None
    """Upper bound on the change of any holdout prediction."""
    audit: Audit | None = None
    """Measurements of a network, for which no bound exists."""
    scope: str = "model"
    """`model`, or `head` for a model with a frozen encoder: the bound is on the distance to a retrain of the head,
    the linear model on the features of the same encoder."""
    removal: RemovalPromise | None = None
    """The guarantee of certified removal, for models that were created with it."""
    labels: dict[str, dict[str, Any]] | None = None
    """The bound of each label of a `labels` target; null for other targets."""


class Change(Response, frozen=True, kw_only=True):
    """A change of the spec, or a correction of examples."""

    position: int
    """Position in the ledger; the last one if a correction took several."""
    kind: str
    """Part of the spec that changed, or `replaced` if examples were corrected."""
    value: dict[str, Any] | None = None
    """New value; null if examples were corrected."""
    examples: int | None = None
    """Number of corrected examples; null if the spec changed."""
    created_at: datetime


class Changed(Response, frozen=True, kw_only=True):
    """Confirmation of a change of the model."""

    position: int
    """Position of the change in the ledger."""
    job: str | None = None
    """Id of the job that adapts the model; null while there is no version to adapt, and while the model is held."""
    added: list[str] | None = None
    """Columns that the change adds."""
    dropped: list[str] | None = None
    """Columns that the change drops; a renamed column states its former name in `was`."""
    restored: list[str] | None = None
    """Added columns that had been dropped, and have their values in earlier examples again."""


class Coefficient(Response, frozen=True, kw_only=True):
    """Coefficient of a feature in each of two versions; null if the architecture lacks the feature."""

    feature: str
    class_: int | str | None = msgspec.field(default=None, name="class")
    """Class whose output it contributes to; null if there is only one output."""
    a: float | None = None
    b: float | None = None


class ColumnDrift(Response, frozen=True, kw_only=True):
    """Drift of a column."""

    psi: float
    """Population stability index; 0 if there is nothing to compare."""
    limit: float
    """PSI above which it counts as drifted: 0.2, or more with few rows."""
    p_value: float
    """p-value of a chi-squared test. It does not decide."""
    drifted: bool
    """Whether `psi` exceeds `limit`, with at least 200 rows on each side."""
    too_few_rows: bool
    """Whether one side has fewer than 200 rows, so that drift cannot be detected."""
    missing: float
    """Share of the window's rows in which the value is missing."""
    unseen: float
    """Share of the window's rows whose category is unknown."""
    bins: list[DriftBin]
    """Histogram of the reference and of the window."""
    name: str
    """Name of the column; `x[0]`, `x[1]`, ... for vectors."""
    type: str


class Comparison(Response, frozen=True, kw_only=True):
    """Comparison of an adapted version with a full retrain at the same position."""

    loss: Sides | None = None
    accuracy: Sides | None = None
    auc: Sides | None = None
    average_precision: Sides | None = None
    f1: Sides | None = None
    calibration: Sides | None = None
    rmse: Sides | None = None
    rows: int | None = None
    """Number of examples that the metrics were computed on."""
    heaviest: float | None = None
    """Largest share of one example in their total weight."""
    disagreement: float | None = None
    """Fraction of predictions that differ; for numbers and counts, their distance relative to the spread of the
    targets."""
    disagreement_se: float | None = None
    """Standard error of the disagreement."""
    weight_distance: float | None = None
    """|w_adapted - w_retrained|; null for networks."""
    cost: Costs | None = None
    speedup: float | None = None
    """Seconds of the full retrain divided by those of the adaptation."""
    retrain_is_worse: str | None = None
    """Metric in which the retrained version is worse than the adapted one by more than two standard errors of the
    difference, with both values; null if there is none. A worse version does not take over."""
    took_over: bool | None = None
    """Whether later adaptations start from the retrained version."""
    outcome: str | None = None
    """What happened to the retrained version, and why."""
    position: int
    adapted: int
    """Number of the adapted version."""
    retrained: int
    """Number of the retrained version."""
    within_tolerance: bool
    """Whether the adapted version is within the policy's tolerance of the retrained one."""
    created_at: datetime


class Cost(Response, frozen=True, kw_only=True):
    """Cost of computing a version."""

    backward_passes: float
    """Number of single-example gradients."""
    data_passes: float
    """Number of passes over the past training examples."""
    seconds: float
    """Time in seconds."""


class Costs(Response, frozen=True, kw_only=True):
    """Cost of the adapted version and of the full retrain."""

    adapted: Cost
    retrained: Cost


class Counts(Response, frozen=True, kw_only=True):
    """Numbers of examples."""

    train: int
    holdout: int
    removed: int
    """Examples no longer in force: removed, expired, erased, or replaced by a correction."""
    quarantined: int
    """Examples out of force because the promotion gate rejected the version that learnt them."""
    unlabelled: int
    """Examples without a label, which are not trained on yet."""
    encoding_failed: int = 0
    """Active examples that the model's encoder could not encode. They are not trained on: `GET
    .../examples?state=encoding_failed` lists them. Missing if zero."""


class Delivery(Response, frozen=True, kw_only=True):
    """Delivery of one event to one webhook. Only the status of the receiver's responses is stored."""

    id: str
    """The `webhook-id` header, the same for every attempt."""
    type: str
    state: str
    attempts: int
    status: int | None = None
    """HTTP status of the last response."""
    error: str | None = None
    next_attempt_at: datetime | None = None
    """Time of the next attempt; null if there is none."""
    delivered_at: datetime | None = None
    created_at: datetime


class Difference(Response, frozen=True, kw_only=True):
    """A part of the spec that differs between the versions."""

    field: str
    a: Any
    b: Any


class Drift(Response, frozen=True, kw_only=True):
    """Recent examples compared with the examples of the last full training."""

    position: int
    """Last position of the ledger that it covers."""
    version: int
    """Version that made the predictions."""
    reference: DriftRows
    window: DriftRows
    drifted: bool
    """Whether a column or the predictions have drifted."""
    columns: list[ColumnDrift]
    """The columns by descending PSI, at most 100."""
    omitted: int
    """Number of columns with a smaller PSI that are not listed."""
    predictions: PredictionDrift | None = None
    """Null if the champion was made for other columns or classes than the model has now."""
    segments: list[SegmentDrift]
    """Drift among the rows with each value of the columns in `policy.segments`, the worst first. Values with fewer
    than 200 rows on either side are left out."""


class DriftBin(Response, frozen=True, kw_only=True):
    """Number of rows whose value is in a bin."""

    label: str
    """Range of numbers or dates, value of a category, class, `missing` or `unseen`."""
    reference: int
    window: int


class DriftRows(Response, frozen=True, kw_only=True):
    """Rows that a distribution was computed from. All of them are in force at `position`."""

    rows: int
    """Number of rows."""
    first_position: int | None = None
    last_position: int
    """For the reference: the position of the last full training."""
    sample: str
    """`holdout`, `training`: random rows of that split; `recent`: the most recent rows of both."""
    pending: int
    """Number of rows among them that have no label yet."""


class Encoder(Response, frozen=True, kw_only=True):
    """An uploaded encoder."""

    digest: str
    """SHA-256 of the file; a linear architecture names its encoder by it."""
    size: int
    """Bytes of the file."""
    inputs: list[Tensor]
    outputs: list[Tensor]
    """Outputs of the model. The first one has the features."""
    features: int
    """Number of features."""
    trained_on: str
    """`other`: the encoder has seen none of the examples that Amend stores. `examples`: it was fitted on them, so
    erasures have to consider it."""
    created_at: datetime


class Erasure(ErasureMethods, frozen=True, kw_only=True):
    """An erasure request and its progress."""

    id: str
    state: str
    received_at: datetime
    due_at: datetime
    overdue: bool
    """Whether the request is still open after its due date."""
    completed_at: datetime | None = None
    """Null while the request is open, and if it was refused or withdrawn."""
    late: bool
    """Whether the request ended after its due date."""
    reason: str | None = None
    """The note that was given with the request; null once the request has ended."""
    reference: str | None = None
    """Your own number for the request; null after the retention period of the register."""
    extension: str | None = None
    """Reason for the extension of the due date."""
    refusal: str | None = None
    """Reason for the refusal."""
    trail: list[Event]
    """Actions on the request, in order, as in the register. Records that have expired are left out."""
    models: list[Part]
    receipt: str | None = None
    """Path of the receipt; null until the erasure is completed."""
    repeats: str | None = None
    """Id of the completed erasure that this one repeats, because a backup from before it was restored."""
    tokens: list[str]
    """Keyed hashes of the identifiers that are searched for, as on the receipt; the first identifier first."""
    searched: list[Spelling] | None = None
    """Only in the response to a new request: the identifiers, exactly as the request spells them. Amend stores only
    hashes of them."""
    near_matches: list[Spelling] | None = None
    """Only in the response to a new request: similar spellings (case, Unicode form, spaces) under which examples are
    stored, and which the request does not include. File the request again with those that belong to the person."""
    acknowledgement: dict[str, Any] | None = None
    """Only in the response to a new request: proof that the signed register contains it. Keep it, or give it to the
    person: nobody can deny the request later."""


class Erasures(Response, frozen=True, kw_only=True):
    """Erasure requests in the order of the subjects given. A subject that is given twice has one request."""

    items: list[Erasure]


class Event(Response, frozen=True, kw_only=True):
    """An action on the request."""

    action: str
    by: str
    """Id of the API key that was used; `amend` for actions of Amend itself."""
    name: str | None = None
    """Name of the API key."""
    at: datetime


class Example(Response, frozen=True, kw_only=True):
    """A stored example. Its subject is not included: only a keyed hash of it is stored."""

    id: str
    x: Any
    """A list of numbers, channels of rows of pixels, or a value for each column."""
    y: int | float | str | list[int | str] | None = None
    """A list for a target of several labels. Null if the example has no label yet."""
    split: str
    weight: float
    """How many times the example counts."""
    position: int | None = None
    """Position in the ledger; null if the example has no label yet."""
    time: datetime | None = None
    """Event time."""
    source: str | None = None
    """Load, file or system that the example came from."""
    prediction: RecordedPrediction | None = None
    """What was predicted for an example without a label when it arrived."""


class Failure(Response, frozen=True, kw_only=True):
    """Why a job, or an erasure in one model, failed."""

    code: str
    """Stable identifier of the error, for programs."""
    detail: str
    """Error message."""


class Figure(Response, frozen=True, kw_only=True):
    """A metric of both versions, on the same rows."""

    a: float
    b: float
    difference_se: float | None = None
    """Standard error of the difference."""


class Flaw(Response, frozen=True, kw_only=True):
    """Something that contradicts the register."""

    problem: str
    leaf: int | None = None
    """Index of the leaf that it concerns."""
    receipt: int | None = None
    """Number of the receipt that it concerns."""


class Gate(Response, frozen=True, kw_only=True):
    """Result of the promotion gate: the comparison with the champion; `passed` counts all comparisons."""

    metric: str
    version: int | None = None
    """Number of the older version."""
    champion: float | None = None
    """Metric of the older version."""
    candidate: float | None = None
    """Metric of this version."""
    difference: float | None = None
    """`candidate` minus `champion`."""
    difference_se: float | None = None
    """Standard error of the paired difference."""
    relative: float | None = None
    """How much worse this version is, relative to the older version; negative if it is better."""
    rows: int
    """Number of holdout rows that were compared."""
    passed: bool | None = None
    """null: the comparison was not possible; `reason` says why."""
    reason: str | None = None
    """`first_version`, `too_few_rows`, `schema_changed` or `version_purged`; with `passed` false, `holdout_lost`:
    removals or corrections took away the rows to compare on."""
    carried: float | None = None
    """How much worse the older version is than a confirmed version that an erasure purged, rounded; counts towards
    `worse_by`."""
    action: str
    """What a failure leads to. Versions without new examples are never rejected."""
    confirmed: GateComparison | None = None
    """Comparison with the last version that a person accepted or a retrain confirmed; it may be the champion."""
    segments: list[SegmentComparison] | None = None
    """Comparisons with the champion for the values of the columns in `policy.segments`, the worst first."""
    batch: GateComparison | None = None
    """Comparison with the champion on the holdout rows of the new examples. It does not decide."""
    corrections: GateComparison | None = None
    """Loss of the champion on the holdout without (`champion`) and with (`candidate`) the corrections since the
    confirmed version; `rows` is the number of corrected rows. It is never a reason to reject a version."""


class GateComparison(Response, frozen=True, kw_only=True):
    """A version compared with an older version on the same holdout rows."""

    metric: str
    version: int | None = None
    """Number of the older version."""
    champion: float | None = None
    """Metric of the older version."""
    candidate: float | None = None
    """Metric of this version."""
    difference: float | None = None
    """`candidate` minus `champion`."""
    difference_se: float | None = None
    """Standard error of the paired difference."""
    relative: float | None = None
    """How much worse this version is, relative to the older version; negative if it is better."""
    rows: int
    """Number of holdout rows that were compared."""
    passed: bool | None = None
    """null: the comparison was not possible; `reason` says why."""
    reason: str | None = None
    """`first_version`, `too_few_rows`, `schema_changed` or `version_purged`; with `passed` false, `holdout_lost`:
    removals or corrections took away the rows to compare on."""
    carried: float | None = None
    """How much worse the older version is than a confirmed version that an erasure purged, rounded; counts towards
    `worse_by`."""


class Health(Response, frozen=True, kw_only=True):
    """State of one component that the service depends on."""

    ok: bool
    detail: str


class Held(Response, frozen=True, kw_only=True):
    """A hold: until `resume`, nothing is adapted, retrained or promoted automatically."""

    since: datetime
    reason: str
    by: str
    """Id of the API key that held the model."""


class Holding(Response, frozen=True, kw_only=True):
    """A model that has examples of the subject."""

    model: str
    examples: int
    """Number of different examples: active, restricted by a request, or removed but not yet deleted."""


class Job(JobMethods, frozen=True, kw_only=True):
    """A job: one unit of work on one model."""

    id: str
    model: str
    kind: str
    state: str
    progress: float
    """Fraction of the work that is done."""
    message: str
    """What the job is doing, or its result."""
    attempts: int
    """Number of attempts that a worker has started."""
    error: Failure | None = None
    from_position: int
    to_position: int
    """Position of the ledger that the job brings the model to, unless more changes arrive before it starts."""
    version: int | None = None
    """Version that the job made."""
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Key(Response, frozen=True, kw_only=True):
    """An API key, without its secret."""

    id: str
    name: str
    person: bool
    """Whether this is a person who signs in at the identity provider."""
    scopes: list[str]
    models: list[str] | None = None
    created_at: datetime
    last_used_at: datetime | None = None
    """Updated about once a minute."""
    expires_at: datetime | None = None
    quota: dict[str, Any] | None = None


class Labelled(Response, frozen=True, kw_only=True):
    """Result of sending labels. All labels of known examples are stored, or none."""

    accepted: int = 0
    """Number of labels that were stored; each adds its example to the ledger."""
    unknown: list[str]
    """Ids that belong to no example of the model, with or without a label."""
    duplicates: int = 0
    """Number of labels that their examples already had."""
    quarantined: int = 0
    """Number of stored labels whose examples are in quarantine, because they are about people whose data was erased;
    missing if zero."""


class Letter(Response, frozen=True, kw_only=True):
    """The text of a letter to a person. The salutation and the sender's address are only on the printable letter."""

    kind: str
    request: str
    """Id of the request."""
    reference: str | None = None
    """The caller's own number for the request."""
    title: str
    paragraphs: list[str]
    enclosures: list[str]
    """Documents to send with the letter."""
    acknowledgement: dict[str, Any] | None = None
    """On a confirmation: proof that the signed register contains the request."""


class Lookup(Response, frozen=True, kw_only=True):
    """Models with examples of the subject, as far as the key can see them."""

    models: list[Holding]
    near_matches: list[Spelling]
    """Similar spellings (case, Unicode form, spaces) under which examples are stored. Empty if the key is limited to
    models."""


class Memory(Response, frozen=True, kw_only=True):
    """Past examples that a version keeps for later adaptations."""

    size: int
    """Number of examples in the memory."""
    fraction: float
    """Size of the memory relative to the number of training examples."""


class Model(Response, frozen=True, kw_only=True):
    """A model: its spec, policy and present state."""

    name: str
    """1-63 of a-z 0-9 - _"""
    input: dict[str, Any]
    target: dict[str, Any]
    architecture: dict[str, Any]
    regularizer: dict[str, Any]
    class_weight: dict[str, float] | None = None
    """Factor for the weight of the examples of a class in training, by the class's text (0 and 1 for a binary
    target); 1 for classes that are not listed. Metrics do not depend on it."""
    loss: dict[str, Any]
    """Loss that training minimises."""
    training: dict[str, Any]
    policy: dict[str, Any]
    counts: Counts
    head: int
    """Last position of the ledger."""
    champion: int | None = None
    """Version that makes the predictions; null until the model is trained."""
    withdrawn: bool
    """Whether the model has no champion because its last training example was removed; new examples train it again."""
    pending: int
    """Number of changes not yet reflected in the champion."""
    held: Held | None = None
    """Null if the model is not held: the policy applies."""
    mlflow: dict[str, Any] | None = None
    """Null until the champion is published to MLflow."""
    created_at: datetime


class NamedCoefficient(Response, frozen=True, kw_only=True):
    """Coefficient of a feature of a linear model."""

    feature: str
    """Name of the feature: a column (`age`), a value of a category (`plan = paid`), a product (`age * age`), a place
    in a vector (`x[3]`), or `(intercept)`."""
    class_: int | str | None = msgspec.field(default=None, name="class")
    """Class whose output it contributes to; null if there is only one output."""
    coefficient: float
    """Change of the output for each unit of the input, in the units of the examples."""
    standardised: float
    """Change of the output for each standardised unit: numbers in tables are divided by about their standard
    deviation."""


class Notice(Response, frozen=True, kw_only=True):
    """The draft of a notice to one recipient."""

    key: str
    """Id of the API key with which the copies were made."""
    name: str | None = None
    """Name of the API key."""
    copies: list[NoticedCopy]
    text: str
    """The draft."""


class NoticedCopy(Response, frozen=True, kw_only=True):
    """A copy that left Amend before the erasure."""

    model: str
    what: str
    """What the copy consists of, in words."""
    version: int | None = None
    at: str
    """When the copy was made; the first time, if it was made several times."""
    count: int
    """How many times it was made."""
    last_at: str | None = None
    """When the last copy was made; null if there was only one."""


class Notices(Response, frozen=True, kw_only=True):
    """The drafts for all recipients that the receipt lists. Empty if the audit log lists no copies."""

    items: list[Notice]


class Part(Response, frozen=True, kw_only=True):
    """Progress of an erasure in one model."""

    model: str
    examples: int
    """Number of the person's examples in this model."""
    state: str
    version: int | None = None
    """The promoted version that does not depend on the person's examples."""
    bound: float | None = None
    """Upper bound on the distance of its weights to those of a retrain without the person's examples."""
    method: str | None = None
    """`adapted`, `retrained` or `withdrawn`."""
    error: Failure | None = None
    """Why the erasure failed in this model."""


class PastRequests(Response, frozen=True, kw_only=True):
    """All requests for one identifier, newest first. Completed erasures have a `receipt`."""

    erasures: list[Erasure]
    restrictions: list[Restriction]


class Prediction(Response, frozen=True, kw_only=True):
    """One prediction: `mean` for binary targets, numbers and counts; `class` for binary targets and classes;
    `labels` for targets of several labels."""

    mean: float | None = None
    score: float | None = None
    """Instead of `mean` for the squared hinge loss: above 0 for class 1."""
    class_: int | str | None = msgspec.field(default=None, name="class")
    labels: list[int | str] | None = None
    """Labels whose probability is above the threshold."""
    probabilities: dict[str, float] | None = None
    std: float | dict[str, float] | None = None
    """On request: standard deviation, or one per class."""
    interval: list[float] | dict[str, list[float]] | None = None
    """On request: limits of the 95 % interval, or a pair of limits for each class."""
    contributions: dict[str, float] | None = None
    """On request: what each input column (or word of a hashed text) contributes to the output before the link
    function, and `(intercept)`; together they add up to it. Of several classes: to the predicted class, less the
    mean of all."""


class PredictionDrift(Response, frozen=True, kw_only=True):
    """Drift of the champion's predictions."""

    psi: float
    """Population stability index; 0 if there is nothing to compare."""
    limit: float
    """PSI above which it counts as drifted: 0.2, or more with few rows."""
    p_value: float
    """p-value of a chi-squared test. It does not decide."""
    drifted: bool
    """Whether `psi` exceeds `limit`, with at least 200 rows on each side."""
    too_few_rows: bool
    """Whether one side has fewer than 200 rows, so that drift cannot be detected."""
    missing: float
    """Share of the window's rows in which the value is missing."""
    unseen: float
    """Share of the window's rows whose category is unknown."""
    bins: list[DriftBin]
    """Histogram of the reference and of the window."""
    type: str
    reference_rows: int
    """Number of rows of the reference that were predicted."""
    window_rows: int
    """Number of predicted rows of the window: its holdout rows, if there are at least 200."""


class Predictions(PredictionsMethods, frozen=True, kw_only=True):
    """Predictions, in the order of the inputs."""

    version: int
    outputs: list[Prediction]


class Promotion(Response, frozen=True, kw_only=True):
    """One promotion of a version to champion."""

    version: int
    previous: int | None = None
    """Champion before the promotion."""
    by: str
    """Id of the API key that requested the promotion, or `policy`."""
    created_at: datetime


class Proof(Response, frozen=True, kw_only=True):
    """An inclusion proof (`leaf`, `size`, `leaf_hash`) or a consistency proof (`from`, `to`), as in RFC 6962."""

    leaf: int | None = None
    size: int | None = None
    leaf_hash: str | None = None
    from_: int | None = msgspec.field(default=None, name="from")
    to: int | None = None
    path: list[str]
    """Hashes, in hexadecimal, in the order of RFC 6962."""


class QualityWindow(Response, frozen=True, kw_only=True):
    """Predictions for new examples, made before the model learnt them."""

    from_: datetime = msgspec.field(name="from")
    """Start of the window."""
    to: datetime
    """End of the window."""
    first_position: int
    last_position: int
    rows: int
    """Number of examples."""
    champion: dict[str, int | float | None]
    """Metrics of the champion at that time, and the number of the newest `version` that was champion. A name that
    ends in `_se` is a standard error, clustered by subject."""
    frozen: dict[str, int | float | None] | None = None
    """Metrics of the first version: how well the model would predict without any updates."""
    baseline: dict[str, int | float | None]
    """Metrics of the best constant prediction for these examples."""
    challenger: dict[str, int | float | None] | None = None
    """Metrics of the policy's challenger, if it made predictions."""
    segments: list[SegmentMetrics]
    """The champion on the examples with each value of the columns in `policy.segments`, the worst by the gate's
    metric first. Values with fewer than 30 examples are left out, and so are all of them if the metrics are
    rounded."""
    alarm: bool
    """Whether the champion's loss was far above its usual loss."""
    rounded: bool
    """Whether the metrics were rounded, because a person in the data was erased."""


class Readiness(Response, frozen=True, kw_only=True):
    """State of all components. `down`: requests or jobs cannot be processed. `degraded`: only MLflow is unavailable."""

    status: str
    database: Health
    store: Health
    receipts: Health
    """Not OK with the detail `receipts_behind` after a restore, until `amend erasures replay` was run."""
    broker: Health
    worker: Health
    mlflow: Health


class Receipt(TypedDict):
    """Record of what was done for one erasure request. It does not identify the person."""

    subject_token: str
    """Keyed hash in place of the person's first identifier."""
    received_at: str
    due_at: str
    extended: bool
    late: bool
    completed_at: str
    trail: list[dict[str, Any]]
    """Actions on the request, in order."""
    found: int
    """Number of the person's examples."""
    statement: str
    alias_tokens: NotRequired[list[str]]
    """Keyed hashes in place of the person's other identifiers that were searched for."""
    near_matches: NotRequired[int]
    """Number of similar spellings under which there were examples when the request was filed; they were not erased."""
    caseless: NotRequired[bool]
    """Whether identifiers are compared without regard to upper and lower case."""
    unsearchable: NotRequired[list[str]]
    """Models with examples that have no subject, and could not be searched."""
    toward: NotRequired[list[str]]
    """Models whose regularizer draws the weights toward numbers (`toward`) of unknown origin."""
    limits: NotRequired[list[str]]
    """What the receipt does not cover."""
    recognised_until: NotRequired[str | None]
    """Date until which Amend keeps a keyed hash that recognises the person's data if it returns."""
    number: int
    erasure: str
    """Id of the erasure."""
    models: list[ReceiptModel]
    leaf: int
    """Index of its leaf in the register."""
    key_id: str
    """Id of the key that signed it."""
    sha256: str
    """Hash of the signed statement."""


class ReceiptItem(Response, frozen=True, kw_only=True):
    """A receipt in a list."""

    number: int
    erasure: str
    """Id of the erasure."""
    leaf: int
    """Index of its leaf in the register."""
    sha256: str
    """Hash of the signed statement."""
    key_id: str
    """Id of the key that signed it."""
    completed_at: str


class ReceiptModel(TypedDict):
    """What was done in one model. Fields that do not apply to the method are left out."""

    objective: NotRequired[dict[str, Any] | None]
    """Parameters of the objective that the version minimises; left out for networks."""
    rows: NotRequired[dict[str, Any] | None]
    """Number and Merkle root of the retained training rows, if a bundle can carry them."""
    model: str
    examples: int
    """Number of the person's examples in this model."""
    audit: NotRequired[dict[str, Any] | None]
    deleted: NotRequired[dict[str, Any] | None]
    versions: NotRequired[dict[str, Any] | None]
    checked: NotRequired[dict[str, int] | None]
    """Number of remaining items found in each place that was searched after the erasure."""
    database: NotRequired[str | None]
    """How deleted rows were removed from the database's files."""
    caches: NotRequired[str | None]
    was_in_use: NotRequired[bool | None]
    """Whether the version in use when the request was filed had been trained on the person's examples."""
    copies: NotRequired[list[dict[str, Any]] | None]
    """Downloads of versions trained on the person's examples, and exports of these examples, from the audit log."""
    kept_until: NotRequired[str | None]
    """Date when the last version that was trained on the person's examples is purged."""
    encoder: NotRequired[dict[str, str] | None]
    """Frozen encoder of the version: `kind`, `digest` and what it was `trained_on`, `other` or `examples`."""
    method: NotRequired[str | None]
    """`adapted`, `retrained`, `withdrawn`, `unknown` or `deleted`."""
    words: NotRequired[str | None]
    """Description of the method in words."""
    version: NotRequired[int | None]
    """The version that does not depend on the person's examples."""
    commitment: NotRequired[str | None]
    """SHA-256 of a salt and the SHA-256 of that version's file. The salt is deleted when the version is purged."""
    certificate: NotRequired[dict[str, Any] | None]
    """Certificate of that version."""
    disagreement: NotRequired[float | None]
    """Fraction of predictions in which a full retrain differs from that version."""
    tolerance: NotRequired[float | None]
    """Largest bound that the policy allows, relative to the length of the weights."""


class RecordedPrediction(Response, frozen=True, kw_only=True):
    """A prediction that was made before the label of an example is known."""

    version: int
    """Number of the version that predicted."""
    mean: float | list[float]
    """Predicted mean; for several classes, the probability of each."""


class Refusal(Response, frozen=True, kw_only=True):
    """What to tell a person whose request was refused."""

    erasure: str
    """Id of the erasure."""
    received_at: datetime
    refused_at: datetime
    late: bool
    """Whether the request was refused after its due date."""
    reason: str
    examples: int
    """Number of examples of the person that are active again."""
    in_use: list[str]
    """Models whose version in use had been trained on these examples when the request was filed."""
    outcome: str
    """What happened to the examples, in words for the person; empty if nothing happened to them."""
    rights: str
    """The person's rights to complain to an authority and to go to court."""


class Removal(Response, frozen=True, kw_only=True):
    """A removal. Unknown ids and subjects are counted but not stored."""

    id: str
    model: str
    removed: int
    unknown_count: int
    position: int
    job: str | None = None
    created_at: datetime


class RemovalPromise(Response, frozen=True, kw_only=True):
    """The (epsilon, delta) guarantee of certified removal: it holds while the gradient is below the limit."""

    epsilon: float
    delta: float
    gradient_limit: float
    """Largest norm of the gradient for which the guarantee holds."""
    gradient_norm: float | None = None
    """Upper bound on the norm of the gradient at the version's weights."""


class Removed(Response, frozen=True, kw_only=True):
    """Result of a removal. The examples are no longer part of any new training pass or listing."""

    id: str
    removed: int
    unknown: list[str]
    """Ids, subjects or source that match no example of the model."""
    position: int
    """Last ledger position of the removal; the head if it took no position."""
    job: str | None = None
    """Id of the job that makes the model forget the examples. Null if no removed example was in force, if the model
    has no version, or if it is held: then `resume` starts the job."""


class Replaced(ReplacedMethods, frozen=True, kw_only=True):
    """Result of a correction. All examples of a request are corrected, or none."""

    replaced: int = 0
    """Number of examples that were replaced."""
    unchanged: int = 0
    """Number of examples that already had the given content."""
    quarantined: int = 0
    """Number of new examples in quarantine, because they are about people whose data was erased; missing if zero."""
    position: int = 0
    """Last position that the correction took in the ledger, one for each replaced example; the head if it took none."""
    job: str | None = None
    """Id of the job that adapts the model; null if nothing was replaced, while there is no version to adapt, and
    while the model is held."""


class Replayed(Response, frozen=True, kw_only=True):
    """What was repeated in a database that was restored from a backup."""

    receipts: int
    """Number of receipts that the store contained and the database lacked."""
    erasures: list[str]
    """Ids of the erasures that are carried out again."""
    requests: list[str]
    """Ids of the requests that were restored, or whose decisions were repeated."""
    removals: int
    """Number of examples that were removed again."""
    corrections: int
    """Number of examples that were corrected again."""
    outdated: int
    """Number of examples that were removed because their correction could not be repeated. Send them again."""
    models: list[str]
    """Names of the models that were deleted again."""
    strays: list[str]
    """Names of files in the store that Amend did not write, and that were ignored."""


class RestrictedModel(Response, frozen=True, kw_only=True):
    """The restricted examples of one model."""

    model: str
    examples: int


class Restriction(Response, frozen=True, kw_only=True):
    """A restriction of the processing of a person's data."""

    id: str
    state: str
    received_at: datetime
    restricted_at: datetime
    lifted_at: datetime | None = None
    reason: str | None = None
    """The reason given with the request; null once the restriction is lifted."""
    reference: str | None = None
    """Your own number for the request; null after the retention period of the register."""
    trail: list[Event]
    """Actions on the request, in order, as in the register. Records that have expired are left out."""
    models: list[RestrictedModel]


class Retried(Response, frozen=True, kw_only=True):
    """Failed erasures that were enqueued again."""

    retried: list[str]
    """Ids of the erasures."""


class ReturnedDecision(Response, frozen=True, kw_only=True):
    """Result of a decision about examples of returning people."""

    examples: int
    """Number of examples that were put into force, or removed."""
    job: str | None = None
    """Id of the job that adapts the model; null if nothing has to be adapted."""


class SegmentComparison(Response, frozen=True, kw_only=True):
    """A version compared with the champion on holdout rows that have the same value of a column."""

    metric: str
    version: int | None = None
    """Number of the older version."""
    champion: float | None = None
    """Metric of the older version."""
    candidate: float | None = None
    """Metric of this version."""
    difference: float | None = None
    """`candidate` minus `champion`."""
    difference_se: float | None = None
    """Standard error of the paired difference."""
    relative: float | None = None
    """How much worse this version is, relative to the older version; negative if it is better."""
    rows: int
    """Number of holdout rows that were compared."""
    passed: bool | None = None
    """null: the comparison was not possible; `reason` says why."""
    reason: str | None = None
    """`first_version`, `too_few_rows`, `schema_changed` or `version_purged`; with `passed` false, `holdout_lost`:
    removals or corrections took away the rows to compare on."""
    carried: float | None = None
    """How much worse the older version is than a confirmed version that an erasure purged, rounded; counts towards
    `worse_by`."""
    column: str
    value: str
    """The value; `(missing)` and `(other)` for missing and unseen values."""


class SegmentDrift(Response, frozen=True, kw_only=True):
    """Drift among the rows that have the same value of a column."""

    column: str
    value: str
    """The value; `(missing)` and `(other)` for missing and unseen values."""
    reference_rows: int
    window_rows: int
    drifted: bool
    """Whether a column or the predictions have drifted within the segment."""
    drifted_columns: list[str]
    predictions_drifted: bool
    worst: str | None = None
    """Column with the largest PSI."""
    psi: float
    """Largest PSI of a column."""


class SegmentMetrics(Response, frozen=True, kw_only=True):
    """Examples of a window with the same value of a column."""

    column: str
    value: str
    """The value; `(missing)` and `(other)` for missing and unseen values."""
    rows: int
    """Number of examples."""
    champion: dict[str, float]
    """Metrics of the champion at that time."""


class Side(Response, frozen=True, kw_only=True):
    """One of the two versions."""

    version: int
    kind: str
    method: str
    position: int
    state: str
    spec: dict[str, Any]


class SideBySide(Response, frozen=True, kw_only=True):
    """Comparison of two versions on the same sample of the holdout."""

    a: Side
    b: Side
    differences: list[Difference]
    """Differences between the specs."""
    rows: int
    """Number of holdout examples that the metrics were computed on; 0 if there is no holdout."""
    metrics: dict[str, Figure]
    """`loss`, `accuracy`, `auc`, `average_precision`, `f1`, `calibration`, `rmse` and `r2`, where they apply to both
    versions. `loss` is missing if the versions have different loss functions."""
    disagreement: float | None = None
    """Fraction of predictions that differ; for numbers and counts, their distance relative to the targets' spread."""
    disagreement_se: float | None = None
    """Standard error of the disagreement."""
    largest_change: float | None = None
    """Largest difference between two predictions: of a probability, a number or a count."""
    weight_distance: float | None = None
    """|w_a - w_b|, for linear models of the same architecture."""
    coefficients: list[Coefficient] | None = None
    """Coefficients that differ most, for linear models of tables and vectors, in the units of version `a` (numbers
    in tables are standardised). Null for other models, and for keys without the scope `weights`."""
    coefficients_total: int | None = None
    """Number of all coefficients, including those that are not listed."""


class Sides(Response, frozen=True, kw_only=True):
    """A metric of the adapted version and of the full retrain, on the same rows."""

    adapted: float
    retrained: float
    difference_se: float | None = None
    """Standard error of the difference."""


class Spelling(Response, frozen=True, kw_only=True):
    """A spelling of an identifier."""

    subject: str
    examples: int
    """Number of examples stored under this spelling, in all models."""


class StartedAnalysis(Response, frozen=True, kw_only=True):
    """An analysis that a job computes."""

    id: str
    job: str
    """Id of the job."""


class Statistics(Response, frozen=True, kw_only=True):
    """Numbers of requests by the year in which they were received, newest first."""

    years: list[Year]


class Tensor(Response, frozen=True, kw_only=True):
    """An input or output of an encoder."""

    name: str
    type: str
    """Type as onnxruntime names it."""
    shape: list[int | str | None]
    """Sizes; a name or null for a size that may vary, such as the rows."""


class Verification(Response, frozen=True, kw_only=True):
    """Result of verifying the register, the receipts and the requests."""

    valid: bool
    receipts: int
    """Number of receipts."""
    leaves: int
    """Number of leaves of the register."""
    head: dict[str, Any]
    """Newest signed head. Keep a copy elsewhere: only an older head reveals that it was truncated or rebuilt."""
    flaws: list[Flaw]
    strays: list[str]
    """Names of files in the store that Amend did not write. They have no effect; move them away."""


class Version(Response, frozen=True, kw_only=True):
    """A model state that reflects the ledger up to one position."""

    version: int
    """Number of the version, counted from 1 in each model."""
    kind: str
    """`trained` on all examples, or `adapted` from another version."""
    parent: int | None = None
    """Version that it was adapted from."""
    position: int
    """Last position of the ledger that it reflects."""
    removals_position: int
    """Position up to which removals are reflected: `position`, or a later one if the version replaces a purged one."""
    state: str
    method: str
    """`kprior`, `warm` (gradient descent on all examples, starting from the previous version), `retrain`, or
    `imported` (weights that were trained elsewhere)."""
    memory: Memory
    metrics: dict[str, float | None]
    """Metrics on the holdout. `rows` is the number of holdout examples; a name that ends in `_se` is the standard
    error of another metric."""
    headline: str | None = None
    """Name of the metric that pages and lists show first (`policy.headline`); null without metrics."""
    certificate: Certificate | None = None
    """How far the version can be from a full retrain; null if the policy does not ask for a certificate."""
    gate: Gate | None = None
    """Result of the promotion gate. `passed` is null, with a `reason`, if the version could not be judged;
    `version_purged` if an erasure deleted the result."""
    quarantined: int
    """Number of examples in quarantine because the gate rejected this version."""
    cost: Cost
    spec: dict[str, Any]
    """Spec that the version was made with: the parts `input`, `target`, `architecture`, `regularizer` and `loss`,
    and `class_weight` if the model has it, as in the model."""
    sha256: str | None = None
    """SHA-256 of the file of weights; null once the version is purged for an erasure."""
    mlflow: dict[str, Any] | None = None
    """Null until the version is published to MLflow."""
    created_at: datetime


class Webhook(Response, frozen=True, kw_only=True):
    """A webhook, without its secret."""

    id: str
    url: str
    events: list[str] | None = None
    failing_since: datetime | None = None
    """First failed delivery since the last successful one."""
    disabled_at: datetime | None = None
    """After three days of failures. A successful test enables it."""
    disabled_reason: str | None = None
    created_at: datetime


class Year(Response, frozen=True, kw_only=True):
    """Numbers of the requests that were received in one year (UTC)."""

    year: int
    received: int
    """Erasure requests, whatever their outcome."""
    completed: int
    refused: int
    withdrawn: int
    open: int
    extended: int
    """Erasure requests whose due date was extended."""
    late: int
    """Erasure requests that ended after their due date."""
    median_days: float | None = None
    """Median number of days from receipt to the end of an erasure request; null if none has ended."""
    restrictions: int
    """Restrictions of processing."""
    accesses: int
    """Exports and reports of a person's data, as long as the register keeps their records."""
    corrections: int
    """Corrections of a person's examples, as long as the register keeps their records."""


class CreatedWebhook(Webhook, frozen=True, kw_only=True):
    """A new webhook with the secret that signs its deliveries. The secret is shown only once."""

    secret: str


class Decision(Version, frozen=True, kw_only=True):
    """A rejected version after a person decided about it."""

    examples: int
    """Number of examples that were put back into force, or removed."""
    job: str | None = None
    """Id of the job that adapts the model to them; null if there is none."""


class ExportedExample(Example, frozen=True, kw_only=True):
    """One line of an export: an example of the subject."""

    subject: str
    """The subject as the request names it."""
    model: str
    in_force: bool
    """Whether the example is active. Otherwise it is removed and not deleted yet, or it has no label yet."""


class IssuedKey(Key, frozen=True, kw_only=True):
    """A new key with the text to send as `Authorization: Bearer ...`. The text is shown only once."""

    key: str


class Promoted(Version, frozen=True, kw_only=True):
    """The new champion, or a purged version that a job rebuilds."""

    held: Held | None = None
    """Set if the model is held: promoting an older version holds it until `resume`."""
    job: str | None = None
    """Id of the job that rebuilds a purged version and promotes the result; null if the version is the champion."""


class Resumed(Model, frozen=True, kw_only=True):
    """A model that is no longer held."""

    job: str | None = None
    """Id of the job that processes the pending changes; null if there are none."""


class SpeltReceipt(Receipt):
    """A receipt together with the identifiers that were searched for."""

    searched: list[dict[str, Any]]
