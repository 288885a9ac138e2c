"""What MLflow says in words. First of all: is the adapted model as good as a retrain, and what did it save?"""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeGuard

from core.kprior.model.spec import Input, SpecPart, Target, is_network
from core.tables.figures import AuditFigures
from core.tables.jobs import Job, JobState
from core.tables.models import Model
from core.tables.versions import Comparison, Version, VersionKind, VersionState
from core.tracking.lineage import Lineage, main_metric
from core.versions.privacy_rounding import coarse, coarse_certificate, coarse_pair, sides_of

ROUNDED = (
    "Figures of the holdout are rounded here on purpose, accuracy to steps of four examples, so that nobody's example "
    "can be told from them: differences below a step mean nothing."
)
SMALLEST_PERCENTAGE = 0.0001
"""Percentages below this are shown as less than it."""


def summarize(lineage: Lineage) -> str:
    """Is the adapted model as good as a retrain, and what did it save?"""
    sentences = []
    if lineage.comparisons:
        sentences.append(describe_comparison(lineage, lineage.comparisons[-1]))
    elif any(version.state is VersionState.PURGED for version in lineage.versions):
        sentences.append("Comparisons with full retrains are deleted with versions that knew an erased person.")
    elif lineage.versions:
        sentences.append("No full retrain has been compared with the adapted model yet.")
    else:
        sentences.append("There is no version yet.")
    if saved := describe_saving(lineage):
        sentences.append(saved)
    newest = lineage.line[-1] if lineage.line else None
    if newest is not None and newest.kind is VersionKind.ADAPTED and (near := describe_certificate(newest)):
        sentences.append(f"Version {newest.number}, the newest, is adapted; {near}.")
    return " ".join(sentences)


def describe_comparison(lineage: Lineage, comparison: Comparison) -> str:
    """An adapted version and a full retrain at the same position, in a sentence."""
    figures = coarse_pair(comparison.figures, errors_of(lineage, comparison))
    text = f"At position {comparison.position} the adapted model (version {comparison.adapted}) and a full retrain "
    apart, kind = figures.get("disagreement"), lineage.spec["target"]["kind"]
    if apart is None:
        text += f"(version {comparison.retrained}) were compared"
    elif kind in ("binary", "classes"):
        # a share that is rounded to nothing may be anything below half a step
        less = apart or 2 / max(1, figures.get("rows") or 1)
        or_more = "" if apart else " or more"
        text += f"(version {comparison.retrained}) agree on {percent(max(0.0, 1 - less))} of the holdout{or_more}"
    else:
        text += f"(version {comparison.retrained}) differ by {percent(apart)} of the targets' spread on the holdout"
    sides = sides_of(figures)
    name = main_metric({name: value["adapted"] for name, value in sides.items()})
    if name is not None and number(sides[name].get("retrained")):
        text += f": {name} {figure(sides[name]['adapted'])} against {figure(sides[name]['retrained'])}"
    text += f" ({'within' if comparison.within_tolerance else '**not** within'} tolerance)."
    outcome = "" if comparison.within_tolerance else figures.get("outcome", "")
    return f"{text} {outcome[:1].upper()}{outcome[1:]}." if outcome else text


def errors_of(lineage: Lineage, comparison: Comparison) -> dict[str, float]:
    """The standard errors on either side of a comparison; the rows are the same."""
    retrained = lineage.by_number.get(comparison.retrained)
    return retrained.metrics if retrained is not None else {}


def describe_saving(lineage: Lineage) -> str | None:
    """What the updates after the first training cost, and what retraining each time would have."""
    updates = lineage.line[1:]
    if lineage.saving is None:
        return None
    spent, unspent = lineage.saving
    escalated = sum(v.kind is VersionKind.TRAINED for v in updates)
    many = len(updates) - escalated
    parts = [f"{many} {plural('adaptation', many)}"] if many else []
    parts += [f"{escalated} {plural('training', escalated)} in place of adaptations"] if escalated else []
    text = f"{' and '.join(parts)} took {duration(spent)} in all"
    return f"{text}; retraining each time would have taken about {duration(unspent)}."


def describe_certificate(version: Version) -> str | None:
    """How far from a retrain a version can be."""
    certificate = coarse_certificate(version.certificate)
    relative = certificate.get("relative")
    if number(relative):
        text = f"within {percent(relative)} of a retrain, in the weights' length"
        change = certificate.get("prediction_bound")
        return f"{text}, no holdout prediction off by more than {figure(change)}" if number(change) else text
    return describe_audit(certificate["audit"]) if certificate.get("audit") else None


def describe_audit(audit: AuditFigures) -> str:
    """What was measured of a network, for which there is no bound."""
    sentences = []
    after, before = audit.get("unseen_loss"), audit.get("unseen_loss_before")
    if number(after) and number(before):
        where = "the holdout" if audit.get("holdout", True) else "retained examples"
        sentences.append(f"a loss of {figure(after)} on {where}, {figure(before)} had nothing been done")
    lost, auc, expected = audit.get("removed_loss"), audit.get("membership_auc"), audit.get("expected_auc")
    if number(lost) and number(auc) and number(expected):
        like = f"a membership AUC of {figure(auc)}, {figure(expected)} for a network that never saw them"
        sentences.append(f"removed examples lose {figure(lost)}, with {like}")
    if number(still := audit.get("still_named")):
        sentences.append(f"{percent(still)} of them are still predicted as they were labelled")
    return "measured: " + ("; ".join(sentences) or "nothing, for want of examples to look at")


def describe_candidates(version: Version) -> str:
    """Which candidates were tried for a network's version, and why the cheaper ones were not taken."""
    names = {"kprior": "the adaptation", "warm": "a warm descent on all examples", "retrain": "a retrain"}
    candidates = (version.evaluation or {}).get("candidates", [])
    if not candidates:
        return ""
    taken = candidates[-1]
    text = f" Made by {names[taken['method']]}: {taken['visits']:.0f} gradients, {taken['predicted']:.0f} expected."
    for other in candidates[:-1]:
        text += f" {names[other['method']].capitalize()} ({other['visits']:.0f}) was not taken: {other['objection']}."
    return text


def describe_hold(model: Model) -> str:
    """That a model is held, since when and why; "" if it is not."""
    if model.held_at is None:
        return ""
    since = f"{model.held_at:%Y-%m-%d %H:%M} UTC"
    return f"held since {since}: {model.held_why}"


def describe_model(lineage: Lineage) -> str:
    """The description of a model's experiment, in Markdown."""
    name, spec = lineage.model.name, lineage.spec
    hold = describe_hold(lineage.model)
    return (
        f"{f'**The model is {hold}.** Nothing is adapted or retrained by itself. ' if hold else ''}"
        f"{summarize(lineage)}\n\n"
        f"The model *{name}* predicts {describe_target(spec['target'])} from {describe_input(spec['input'])} "
        f"({describe_part(lineage.spec['architecture'])}). It is kept current by adaptation instead of retraining; "
        f"full retrains check on it. Each run is a job of Amend: *adapted* ones moved the model to a new position of "
        f"its ledger, *trained* ones started from scratch. `comparison/` metrics hold both against each other, "
        f"{describe_proof(lineage)}. {ROUNDED}\n\n"
        f"The experiment **{timeline_name(name)}** draws adapted, retrained and frozen model, version by version."
    )


def describe_proof(lineage: Lineage) -> str:
    """What stands under `certificate/`."""
    if not is_network(lineage.spec["architecture"]):
        return "`certificate/` bounds the distance to the retrain that nobody ran"
    return "`certificate/audit_...` says what was measured of the adapted network"


def describe_timeline(lineage: Lineage) -> str:
    """The description of a model's timeline, in Markdown."""
    return (
        f"{summarize(lineage)}\n\n"
        f"The model *{lineage.model.name}*, version by version: a step is a version's number, `ledger/position` the "
        f"position that it stands for. **adapted** is the model in service, "
        f"**retrained** the full retrains it is compared with, **frozen** its first version, had nothing been done. "
        f"`cost/..._total` of *retrained* is what retraining at every version would have cost, estimated from the "
        f"last full training; everything else is measured, on the holdout. {ROUNDED}"
    )


def describe_line(which: str, lineage: Lineage) -> str:
    """The description of a run of the timeline."""
    what = {
        "adapted": "The model in service, adapted to each change.",
        "retrained": "Full retrains, at the same positions; `cost/..._total`: had each version been one, estimated.",
        "frozen": "The first version on the holdout of each later one: had nothing been done.",
    }
    return f"{what[which]}\n\n{summarize(lineage)}"


def run_name(job: Job, version: Version | None) -> str:
    """The name of a job's run."""
    if version is not None:
        return f"version {version.number}, {version.kind.value}"
    return f"{job.kind.value}, {job.state.value}"


def describe_job(job: Job, version: Version | None, lineage: Lineage) -> str:
    """The description of a job's run."""
    if version is not None:
        return describe_version(version, lineage)
    span = describe_span(job.from_position + 1, job.to_position)
    if job.state is JobState.CANCELLED:
        return f"The job for {span} was cancelled."
    code = job.error["code"] if job.error else "unknown"
    return f"The job for {span} failed: `{code}`. The job itself (`/v1/jobs/{job.id}`) says more."


def describe_version(version: Version, lineage: Lineage) -> str:
    """A version in a few sentences."""
    comparison = lineage.comparison_of(version)
    if version.kind is VersionKind.ADAPTED:
        near = describe_certificate(version)
        text = f"Adapted from version {version.parent} to position {version.position}" + (f"; {near}." if near else ".")
    elif version.job_id in lineage.retrains and comparison is not None:
        text = f"Retrained from scratch at position {version.position}, to compare with version {comparison.adapted}."
    elif version is lineage.versions[0]:
        text = f"Trained from scratch at position {version.position}: the first version."
    else:
        text = f"Trained from scratch at position {version.position}."
    text += describe_candidates(version)
    if name := main_metric(version.metrics):
        text += f" {name.capitalize()} {figure(coarse(version.metrics)[name])} on the holdout."
    text += f" It took {duration(version.cost.get('seconds', 0))}"
    usual = lineage.retrain_of(version)
    if version.kind is VersionKind.ADAPTED and usual is not None:
        text += f"; the last full training took {duration(usual.cost.get('seconds', 0))}"
    return f"{text}.\n\n{describe_comparison(lineage, comparison)}" if comparison is not None else f"{text}."


def timeline_name(model: str) -> str:
    return f"{model} timeline"


def describe_target(described: Target) -> str:
    if described["kind"] == "classes":
        return f"one of {len(described['values'])} classes"
    return {"binary": "yes or no", "number": "a number", "count": "a count"}[described["kind"]]


def describe_input(described: Input) -> str:
    if described["kind"] == "vector":
        return f"vectors of {described['dim']} {plural('number', described['dim'])}"
    if described["kind"] == "image":
        return f"images of {' x '.join(map(str, described['shape']))}"
    return f"tables of {len(described['columns'])} {plural('column', len(described['columns']))}"


def describe_part(described: SpecPart) -> str:
    """
    >>> describe_part({"kind": "l2", "delta": 5.0, "toward": [0.5, -1.0]})
    'l2, delta 5.0, toward 2 weights (sha256 0d243f6665c4)'
    >>> describe_part({"kind": "kernel", "kernel": "rbf", "features": 200})
    'kernel rbf, features 200'
    >>> describe_part({"kind": "l2", "delta": 5.0, "penalize_bias": False})
    'l2, delta 5.0, penalize_bias false'
    """
    options = {name: value for name, value in described.items() if name != "kind" and value is not None}
    if "toward" in options:
        # MLflow keeps what it is told for good, and weights know people
        weights = json.dumps(options["toward"])
        digest = hashlib.sha256(weights.encode()).hexdigest()[:12]
        options["toward"] = f"{weights.count(',') + 1} weights (sha256 {digest})"
    kind = described["kind"]
    # of a kernel it is said which
    named = f"{kind} {options.pop(kind)}" if kind in options else kind
    # as the API writes them
    said = {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
    return ", ".join([named, *(f"{name} {value}" for name, value in said.items())])


def number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def describe_span(first: int, last: int) -> str:
    """
    >>> describe_span(4, 9), describe_span(9, 9)
    ('positions 4 to 9', 'position 9')
    """
    return f"position {last}" if first >= last else f"positions {first} to {last}"


def plural(noun: str, many: int) -> str:
    return noun if many == 1 else f"{noun}s"


def percent(fraction: float) -> str:
    """
    >>> percent(0.99812), percent(0.00004), percent(1.0), percent(1e-12)
    ('99.8 %', '0.004 %', '100 %', 'less than 0.0001 %')
    """
    value = 100 * fraction
    if 0 < value < SMALLEST_PERCENTAGE:
        return f"less than {SMALLEST_PERCENTAGE} %"
    if value in (0, 100):
        return f"{value:.0f} %"
    return f"{value:.1f} %" if 1 <= value < 99.95 else f"{value:.4g} %" if value > 99 else f"{value:.1g} %"


def figure(value: float) -> str:
    """
    >>> figure(0.94251), figure(0.0000312), figure(1234.5), figure(351052.4) == "351\\u202f100"
    ('0.943', '3.1e-05', '1234', True)
    """
    if value != 0 and abs(value) < 0.001:
        return f"{value:.2g}"
    if 1e4 <= abs(value) < 1e9:
        return f"{float(f'{value:.4g}'):,.0f}".replace(",", "\u202f")
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0123), duration(4.12), duration(75), duration(310), duration(9000)
    ('0.012 s', '4.1 s', '75 s', '5.2 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
