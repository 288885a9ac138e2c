"""`python -m bench.unchecked_worker`: a worker without the checks of model quality, to measure what they cost."""

from __future__ import annotations

from worker import job_runner
from worker.__main__ import main
from worker.jobs import adapt, retrain
from worker.versions import recording
from worker.versions.snapshot import ModelSnapshot
from worker.versions.test_then_train import NewExamplesScored


def score_nothing(snapshot: ModelSnapshot) -> NewExamplesScored:
    return NewExamplesScored(-1, snapshot.at)


for job in (adapt, retrain):
    job.score_new_examples = score_nothing  # type: ignore[attr-defined]
    job.judge_draft = lambda snapshot, draft, **_: draft  # type: ignore[attr-defined]
recording.check_stored = lambda *_: None  # type: ignore[attr-defined]
job_runner.update_drift = lambda *_: None  # type: ignore[attr-defined]

if __name__ == "__main__":
    main()
