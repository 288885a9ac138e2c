"""The certificate of a version: whether the policy requires one, how it is computed, and its JSON."""

from dataclasses import replace
from typing import Any

from core.kprior import Certificate, Cost, Result, State, refine_for_erasure
from core.kprior.certificate.certificate import RemovalPromise
from core.kprior.certificate.refinement import Refinement
from core.kprior.certificate.result import Reuse
from core.kprior.curvature import is_wide
from core.kprior.model.spec import frozen_encoder
from worker.example_reading import KeptShards, Reading
from worker.job_attempt import JobAttempt
from worker.versions.snapshot import ModelSnapshot, Unadaptable

MAX_ROUNDS = 5
"""Maximum number of passes over the data for refinement; beyond that, a retrain (about eight) is cheaper."""
MIN_REMOVED_FOR_AUDIT = 10
REMOVED_FIGURES = (
    *("removed_loss", "capped_loss", "membership_auc", "auc_error", "forgotten_label_rate"),
    *("expected_loss", "expected_auc", "expected_label_rate", "unseen_error"),
    *("expected_capped_loss", "capped_loss_error", "ranked_first", "expected_ranked_first"),
)
"""Metrics of an audit that describe the removed examples themselves."""


def must_certify(snapshot: ModelSnapshot, state: State, removes: bool) -> bool:
    """Whether a version needs a certificate; networks have none."""
    if not state.predictor.linear:
        return False
    wanted = snapshot.policy.certify
    asked = wanted in ("always", "pass") or (removes and wanted == "removals")
    # without a pass, it is unknown whether the adaptation of a wide model is close to a retrain
    return asked or is_wide(state.predictor) or snapshot.erasing or snapshot.removal is not None


def is_sufficient(snapshot: ModelSnapshot, certificate: Certificate | None) -> bool:
    """Whether a certificate satisfies the policy, and the promise of certified removal if there is one."""
    if certificate is None:
        return True
    if not certificate.is_within(snapshot.removal.allowed if snapshot.removal else None):
        return False
    return certificate.meets(snapshot.policy.tolerance.relative_bound)


def certify_if_needed(attempt: JobAttempt, snapshot: ModelSnapshot, result: Result, removes: bool = False) -> Result:
    """The result with its certificate, or without one if none is needed; `removes`: whether examples were removed."""
    if must_certify(snapshot, result.state, removes):
        return certify_version(attempt, snapshot, result)
    return replace(result, certificate=None)


def certify_version(attempt: JobAttempt, snapshot: ModelSnapshot, result: Result) -> Result:
    """The result with a certificate: its own if that suffices, otherwise refined by passes over the data."""
    tolerance = snapshot.policy.tolerance.relative_bound
    allowed = snapshot.removal.allowed if snapshot.removal else None
    forced = snapshot.policy.certify == "pass"
    free = result.certificate
    if free is not None and not forced and free.meets(tolerance) and free.is_within(allowed):
        return result
    data = Reading(
        attempt, snapshot.in_force(), attempt.progress_within(0.5, 0.85), "Certifying: a pass over all examples"
    )
    reuse = Reuse.LEVERAGES if forced else Reuse.SUMS
    refinement = Refinement(tolerance, MAX_ROUNDS, snapshot.holdout, snapshot.memory, snapshot.training.seed, reuse)
    measured = refinement.run(result.state, result.memory, data)
    spent = measured.cost
    if not measured.certificate.is_within(allowed):
        further = replace(refinement, tolerance=0.0, rounds=2, reuse=Reuse.LEVERAGES)
        measured = further.run(measured.state, measured.memory, data)
        spent = spent + measured.cost
    certificate = replace(measured.certificate, passes=spent.data_passes)
    return replace(
        result, state=measured.state, memory=measured.memory, cost=result.cost + spent, certificate=certificate
    )


def refine_without_erased(attempt: JobAttempt, snapshot: ModelSnapshot, result: Result, cost: Cost) -> Result:
    """The result refined until its weights and sums depend only on the remaining examples.

    `cost` is the cost so far; that of the adaptation is not reported because it depends on the erased data. Raises
    Unadaptable if the refinement does not converge.
    """
    phrase = "Removing the erased data from the weights: a pass over all examples"
    found = refine_for_erasure(
        result.state,
        result.memory,
        Reading(attempt, snapshot.in_force(), attempt.progress_within(0.5, 0.85), phrase, KeptShards()),
        tolerance=snapshot.policy.tolerance.relative_bound,
        rounds=MAX_ROUNDS,
        holdout=snapshot.holdout,
        policy=snapshot.memory,
        seed=snapshot.training.seed,
    )
    if found is None:
        raise Unadaptable("refinement could not remove the erased data from its weights")
    return replace(
        result, state=found.state, memory=found.memory, cost=cost + found.cost, certificate=found.certificate
    )


def publishable(certificate: Certificate | None, snapshot: ModelSnapshot) -> Certificate | None:
    """The certificate as it is stored: with the guarantee of certified removal, without metrics of too few examples."""
    if certificate is None:
        return None
    audit = certificate.audit
    if audit is not None and audit.removed < MIN_REMOVED_FOR_AUDIT:  # the losses of so few would reveal them
        nothing: dict[str, Any] = dict.fromkeys(REMOVED_FIGURES)
        audit = replace(audit, **nothing)
    promise, removal = None, snapshot.removal
    if removal is not None:
        promise = RemovalPromise(removal.epsilon, removal.delta, removal.allowed, certificate.gradient_norm)
    spec = snapshot.spec
    frozen = frozen_encoder(spec) is not None or spec["architecture"]["kind"] == "trees" or "transform" in spec["input"]
    scope = "head" if frozen else "model"
    return replace(certificate, audit=audit, removal=promise, scope=scope)
