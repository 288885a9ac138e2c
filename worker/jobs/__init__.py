"""The kinds of jobs: one module for each, and steps that they share. To add a kind, register its handler here."""

from collections.abc import Callable

from core.tables.jobs import JobKind
from worker.job_attempt import JobAttempt
from worker.jobs import adapt, analyse, erase, rebuild, retrain

HANDLERS: dict[JobKind, Callable[[JobAttempt], None]] = {
    JobKind.ADAPT: adapt.adapt,
    JobKind.RETRAIN: retrain.retrain,
    JobKind.ERASE: erase.erase,
    JobKind.REBUILD: rebuild.rebuild,
    JobKind.ANALYSE: analyse.analyse,
}
"""The function that does the work of each kind of job."""
