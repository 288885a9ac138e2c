"""Descriptions of models, versions and jobs in MLflow. The texts are in `templates/descriptions.md`."""

import re
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from core.kprior.certificate.certificate import Certificate
from core.kprior.model.spec import is_network
from core.tables.jobs import Job
from core.tables.models import Model
from core.tables.versions import Comparison, Version
from core.tracking import formats
from core.tracking.lineage import Lineage
from core.versions.privacy_rounding import coarse, coarse_certificate, coarse_pair, sides_of

ROUNDING = (
    "Holdout metrics are rounded on purpose (accuracy to steps of four examples), so that they do not reveal any "
    "single example: differences below a step mean nothing."
)


@dataclass(frozen=True)
class ComparisonSummary:
    """The rounded figures of a comparison that its description names."""

    classifies: bool
    disagreement: float | None
    agreement: float
    metric: str | None
    adapted: float | None
    retrained: float | None
    outcome: str


def figures_of(lineage: Lineage, comparison: Comparison) -> ComparisonSummary:
    retrained = lineage.by_number.get(comparison.retrained)
    figures = coarse_pair(comparison.result, retrained.metrics if retrained is not None else {})
    disagreement, sides = figures.get("disagreement"), sides_of(figures)
    metric = lineage.headline({name: value["adapted"] for name, value in sides.items()})
    if retrained is not None and (preferred := lineage.headline(retrained.metrics)) in sides:
        metric = preferred
    if metric is not None and not formats.number(sides[metric].get("retrained")):
        metric = None
    outcome = "" if comparison.within_tolerance else figures.get("outcome", "")
    # a share that is rounded to 0 may be anything below half a step
    share = disagreement or 2 / max(1, figures.get("rows") or 1)
    return ComparisonSummary(
        classifies=lineage.spec["target"]["kind"] in ("binary", "classes", "labels"),
        disagreement=disagreement,
        agreement=max(0.0, 1 - share),
        metric=metric,
        adapted=sides[metric]["adapted"] if metric else None,
        retrained=sides[metric]["retrained"] if metric else None,
        outcome=outcome[:1].upper() + outcome[1:],
    )


def is_described(certificate: Certificate | None) -> bool:
    """Whether a certificate has anything to say: a bound, or measurements of a network."""
    return certificate is not None and (certificate.relative is not None or certificate.audit is not None)


def describe_hold(model: Model) -> str:
    """Since when and why a model is held; "" if it is not."""
    return f"held since {model.held_at:%Y-%m-%d %H:%M} UTC: {model.held_reason}" if model.held_at else ""


def timeline_name(model: str) -> str:
    return f"{model} timeline"


ENVIRONMENT = Environment(loader=PackageLoader("core.tracking"), undefined=StrictUndefined)
ENVIRONMENT.filters |= {
    "coarse": coarse,
    "coarse_certificate": coarse_certificate,
    "count_of": lambda count, noun: f"{count} {formats.plural(noun, count)}",
    "duration": formats.duration,
    "figure": formats.figure,
    "hold": describe_hold,
    "input": formats.describe_input,
    "is_described": is_described,
    "is_network": is_network,
    "spell_metric": formats.spell_metric,
    "part": formats.describe_part,
    "percent": formats.percent,
    "target": formats.describe_target,
    "timeline_name": timeline_name,
}
ENVIRONMENT.globals |= {"figures_of": figures_of, "rounding": ROUNDING, "span": formats.describe_span}
TEXTS: Any = ENVIRONMENT.get_template("descriptions.md").module


def join_lines(text: str) -> str:
    """Join the lines of a text, with one space between words and none before punctuation; \u00b6 ends a paragraph.

    >>> join_lines("It took 3 s\\n ;\\n a retrain\\ntook 4 s .\\n\u00b6\\nMore.\\n")
    'It took 3 s; a retrain took 4 s.\\n\\nMore.'
    """
    paragraphs = (re.sub(r"[ \n]+", " ", part).strip(" ") for part in text.split("\u00b6"))
    return re.sub(r" (?=[:;,.](?:\s|$))", "", "\n\n".join(part for part in paragraphs if part))


def summarize(lineage: Lineage) -> str:
    """Whether the adapted model is as good as a retrain, and how much time it saved."""
    return join_lines(TEXTS.summary(lineage))


def describe_comparison(lineage: Lineage, comparison: Comparison) -> str:
    return join_lines(TEXTS.comparison(lineage, comparison))


def describe_saving(lineage: Lineage) -> str:
    return join_lines(TEXTS.saving(lineage))


def describe_certificate(version: Version) -> str:
    """How far from a retrain a version can be; "" without a certificate."""
    return join_lines(TEXTS.certificate(version))


def describe_model(lineage: Lineage) -> str:
    """The description of a model's experiment and of its registered model."""
    return join_lines(TEXTS.model(lineage))


def describe_timeline(lineage: Lineage) -> str:
    """The description of the experiment with a model's timeline."""
    return join_lines(TEXTS.timeline(lineage))


def describe_line(which: str, lineage: Lineage) -> str:
    """The description of a run of the timeline."""
    return join_lines(TEXTS.line(lineage, which))


def describe_version(version: Version, lineage: Lineage) -> str:
    return join_lines(TEXTS.version(lineage, version))


def describe_job(job: Job, version: Version | None, lineage: Lineage) -> str:
    """The description of a job's run."""
    return describe_version(version, lineage) if version is not None else join_lines(TEXTS.job(job))


def run_name(job: Job, version: Version | None) -> str:
    """The name of a job's run."""
    if version is not None:
        return f"version {version.number}, {version.kind.value}"
    return f"{job.kind.value}, {job.state.value}"
