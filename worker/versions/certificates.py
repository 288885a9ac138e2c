"""The certificate of a version: whether the policy asks for one, how it is reached, and its JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import partial
from typing import cast

from core.kprior import Certificate, Cost, Result, State, refine, refine_for_erasure
from core.kprior.curvature import is_wide
from core.tables.figures import CertificateFigures
from worker.attempt import JobAttempt
from worker.reading import Reading
from worker.versions.snapshot import ModelSnapshot, Unadaptable

MAX_ROUNDS = 5
"""Passes over the data that refinement may take; after that a retrain, which takes about eight, is cheaper."""
MIN_REMOVED_FOR_AUDIT = 10
REMOVED_FIGURES = (
    *("removed_loss", "membership_auc", "auc_error", "still_named"),
    *("expected_loss", "expected_auc", "expected_named", "unseen_error"),
)
"""Figures of an audit that describe the removed examples themselves."""


def must_certify(snapshot: ModelSnapshot, state: State, removes: bool) -> bool:
    """Whether a version needs a certificate; networks have none."""
    if not state.predictor.linear:
        return False
    wanted = snapshot.policy.certify
    asked = wanted in ("always", "pass") or (removes and wanted == "removals")
    # without a pass, nobody knows whether the adaptation of a wide model is close to a retrain
    return asked or is_wide(state.predictor) or snapshot.erasing or snapshot.removal is not None


def is_sufficient(snapshot: ModelSnapshot, certificate: Certificate | None) -> bool:
    """Whether a certificate satisfies the policy, and the promise of certified removal if there is one."""
    if certificate is None:
        return True
    if snapshot.removal is not None and not certificate.gradient_norm <= snapshot.removal.allowed:
        return False
    return certificate.meets(snapshot.policy.tolerance.relative_bound)


def certify_if_needed(attempt: JobAttempt, snapshot: ModelSnapshot, result: Result, removes: bool = False) -> Result:
    """The result with its certificate, or without one if none is needed; `removes`: whether examples were removed."""
    if must_certify(snapshot, result.state, removes):
        return certify_version(attempt, snapshot, result)
    return replace(result, certificate=None)


def certify_version(attempt: JobAttempt, snapshot: ModelSnapshot, result: Result) -> Result:
    """The result with a certificate: the one it has if that is good enough, else refined by passes over the data."""
    tolerance = snapshot.policy.tolerance.relative_bound
    allowed = snapshot.removal.allowed if snapshot.removal else None
    forced = snapshot.policy.certify == "pass"
    free = result.certificate
    if free is not None and not forced and free.meets(tolerance) and (allowed is None or free.gradient_norm <= allowed):
        return result
    data = Reading(
        attempt, snapshot.in_force(), attempt.progress_within(0.5, 0.85), "certifying: a pass over all examples"
    )
    refine_here = partial(refine, holdout=snapshot.holdout, policy=snapshot.memory, seed=snapshot.training.seed)
    measured = refine_here(result.state, result.memory, data, tolerance=tolerance, rounds=MAX_ROUNDS, forced=forced)
    spent = measured.cost
    if allowed is not None and measured.certificate.gradient_norm > allowed:
        measured = refine_here(measured.state, measured.memory, data, tolerance=0.0, rounds=2, forced=True)
        spent = spent + measured.cost
    certificate = replace(measured.certificate, passes=spent.data_passes)
    return replace(
        result, state=measured.state, memory=measured.memory, cost=result.cost + spent, certificate=certificate
    )


def refine_without_erased(attempt: JobAttempt, snapshot: ModelSnapshot, result: Result, cost: Cost) -> Result:
    """The result refined until its weights and sums depend on the remaining examples alone.

    `cost` is what was spent before; what the adaptation took depends on who is erased, and is not reported. Raises
    Unadaptable if the refinement does not get there.
    """
    phrase = "clearing the weights of who is erased: a pass over all examples"
    found = refine_for_erasure(
        result.state,
        result.memory,
        Reading(attempt, snapshot.in_force(), attempt.progress_within(0.5, 0.85), phrase),
        tolerance=snapshot.policy.tolerance.relative_bound,
        rounds=MAX_ROUNDS,
        holdout=snapshot.holdout,
        policy=snapshot.memory,
        seed=snapshot.training.seed,
    )
    if found is None:
        raise Unadaptable("its weights cannot be told from those of a model that never knew who is erased")
    return replace(
        result, state=found.state, memory=found.memory, cost=cost + found.cost, certificate=found.certificate
    )


def certificate_json(certificate: Certificate | None, snapshot: ModelSnapshot) -> CertificateFigures | None:
    """A certificate as JSON, with the promise of certified removal; infinite numbers become null."""
    if certificate is None:
        return None
    values = asdict(certificate).items()
    figures = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values}
    if figures["audit"] is None:
        del figures["audit"]
    elif figures["audit"]["removed"] < MIN_REMOVED_FOR_AUDIT:  # the losses of so few would reveal who they were
        figures["audit"] |= dict.fromkeys(REMOVED_FIGURES)
    if snapshot.removal is not None:
        spent = {"allowed": snapshot.removal.allowed, "spent": figures["gradient_norm"]}
        figures["removal"] = {"epsilon": snapshot.removal.epsilon, "delta": snapshot.removal.delta, **spent}
    return cast(CertificateFigures, figures)
