"""The kinds of jobs: one module for each, and steps that they share. To add a kind, register its handler here."""

from collections.abc import Callable

from core.tables.jobs import JobKind
from worker.attempt import JobAttempt
from worker.jobs import adapt, erase, retrain

HANDLERS: dict[JobKind, Callable[[JobAttempt], None]] = {
    JobKind.ADAPT: adapt.adapt,
    JobKind.RETRAIN: retrain.retrain,
    JobKind.ERASE: erase.erase,
}
"""The function that does the work of each kind of job."""
