"""Encoding the examples that a job reads, if its model has a frozen encoder."""

from __future__ import annotations

from dataclasses import replace

from core.encoders.example_encoding import UnencodedRows, encode_examples
from core.kprior.model.spec import frozen_encoder
from core.ledger.encodings import count_failed
from core.ledger.spec_history import spec_at
from core.tables.models import Model
from worker.job_attempt import JobAttempt
from worker.versions.snapshot import ModelSnapshot


def encode_snapshot(attempt: JobAttempt, snapshot: ModelSnapshot) -> ModelSnapshot:
    """Encode the examples of a snapshot; returns it with the number of examples that can be trained on."""
    encoder = frozen_encoder(snapshot.spec)
    encode = snapshot.context.encoders.find(snapshot.spec)
    if encoder is None or encode is None:
        return snapshot
    database, tip = snapshot.context.database, snapshot.tip
    with database.read() as session:
        model = session.get_one(Model, snapshot.model_id)
        since = 0
        if tip is not None and tip.position <= snapshot.at:
            # the job that made the tip encoded all examples up to its position
            same = frozen_encoder(spec_at(session, model.id, model.spec, tip.position)) == encoder
            since = tip.position if same else 0
    rows = UnencodedRows(snapshot.model_id, snapshot.spec, range(since, snapshot.at), snapshot.removals_position)
    encode_examples(database, rows, encode, attempt.progress_within(0, 0.05))
    with database.read() as session:
        failed = count_failed(session, model, encoder, snapshot.at, holdout=False)
    return replace(snapshot, count=snapshot.count - failed)
