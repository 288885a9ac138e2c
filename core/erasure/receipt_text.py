"""The texts of receipts and refusals: all sentences about what was done to a person's data.

`report.py` has the facts; the templates of the service's pages have the headings and the layout.
"""

from collections.abc import Sequence
from enum import StrEnum

from core.erasure.report import ComparisonSummary, Familiarity, Method, ModelReport, Outcome
from core.kprior.certificate.audit import Audit
from core.kprior.certificate.certificate import Certificate
from core.tables.versions import Comparison, Version, VersionKind
from core.versions.privacy_rounding import coarse_certificate

CACHES = "processes that serve predictions discard the weights of superseded versions within a minute"
MIN_AUDITED_EXAMPLES = 10
"""Minimum number of examples for which the page shows an audit."""
GLOSSARY = {
    "Example": "one record with its answer, from which a model learns.",
    "Adapted": "the model was moved to where training without this data would have put it.",
    "Bound": "how far from there it can be at most; a model above its tolerance is retrained instead.",
    "Measured": "for a network nothing proves how near it came. It is measured what it makes of the data that was "
    "removed, and it is retrained if that looks as if it knew it.",
    "Retrained": "the model was trained again from nothing, without this data.",
    "Audit": "the chance that one of the examples looks more familiar to the model than one that it never saw. At 0.5 "
    "the two cannot be told apart; with few examples the figure varies by chance.",
}
"""Definitions for readers who do not build models."""
RIGHTS = (
    "You have the right to lodge a complaint with a supervisory authority, in particular where you live, where you "
    "work, or where you think that your rights were infringed (GDPR Art. 77), and the right to a judicial remedy, "
    "before a court (Art. 79)."
)


class Trace(StrEnum):
    """Kinds of traces that are counted at the end, by their names in the receipt."""

    BY_POSITION = "examples by position"
    BY_PERSON = "examples by person"
    PURGED_FILES = "files of purged versions"
    ORPHANS = "files without a version"
    SAMPLE = "rows of the holdout's sample"
    MEMORY = "memory of the champion"
    MLFLOW = "weights in MLflow"
    MLFLOW_PURGED = "weights of purged versions in MLflow"
    MODEL_EXAMPLES = "examples of the model"
    MODEL_FILES = "files of the model"
    MODEL_MLFLOW = "deletions that MLflow has still to make"


class KeepReason(StrEnum):
    """Why a version is not purged."""

    WITHOUT = "made without this data"
    KEPT = "trained on this data; kept for a while, out of use"
    BEFORE = "made before this data came"


def write_statement(models: Sequence[ModelReport]) -> str:
    """The receipt's summary, in a sentence or two."""
    if not models:
        return "No model holds or has learnt from any example about this person."
    count = sum(model.examples for model in models)
    examples, their = ("1 example", "its") if count == 1 else (f"{count} examples", "their")
    where = "1 model" if len(models) == 1 else f"{len(models)} models"
    were = "was" if count == 1 else "were"
    text = f"{examples} about this person {were} forgotten by {where} and deleted; {their} absence was verified."
    if unbounded := sum(lacks_bound(model) for model in models):
        networks = (
            "1 of them is a network that was" if unbounded == 1 else f"{unbounded} of them are networks that were"
        )
        text += f" {networks} adapted: what is left there was measured, and is not proven."
    if until := max(model.kept_until or "" for model in models):
        text += f" Versions that knew the person are kept, out of use, until {until[:10]}."
    return text


def lacks_bound(model: ModelReport) -> bool:
    """Whether a model was adapted without a bound on its distance to a retrain."""
    adapted = model.outcome is not None and model.outcome.method is Method.ADAPTED
    certificate = certificate_of(model)
    return adapted and (certificate is None or certificate.kind != "bound")


def certificate_of(model: ModelReport) -> Certificate | None:
    return model.outcome.certificate if model.outcome else None


WITHDRAWN = Outcome(
    Method.WITHDRAWN, "nothing was ever trained on it, or nothing is left to predict from: the model answers nothing"
)
DELETED = Outcome(Method.DELETED, "the model was deleted, with everything it knew")


def describe_unknown(champion: Version) -> Outcome:
    """The outcome if the version in use is older than the person's first example."""
    words = "the version in use was made before this data came, and never knew it"
    return Outcome(Method.UNKNOWN, words, champion.number, champion.sha256)


def describe_outcome(version: Version, comparison: Comparison | None, tolerance: float) -> Outcome:
    """The outcome of a model, from the version that forgot."""
    certificate = version.certificate
    if certificate is not None and certificate.kind == "measured":
        certificate = coarse_certificate(certificate)
    compared = ComparisonSummary(comparison.result["disagreement"]) if comparison is not None else None
    made = (version.number, version.sha256, certificate, compared)
    if version.kind is VersionKind.TRAINED:
        return Outcome(Method.RETRAINED, "retrained without this data", *made)
    by = " by a descent on all examples that are left" if version.method == "warm" else ""
    if certificate is not None and certificate.kind == "bound":
        perturbed = " with the same perturbation" if certificate.removal else ""
        near = f"within {certificate.bound:.3g} of a retrain without this data{perturbed}"
        near += "; its weights are those of the data that is left, whatever it had learnt before"
        return Outcome(Method.ADAPTED, f"adapted{by}; {near}", *made, tolerance)
    near = (
        "how near to a retrain without this data was measured, not proven: see the certificate and the audit; "
        "its weights derive from weights that were trained on this data, and may hold traces that were not measured"
    )
    return Outcome(Method.ADAPTED, f"adapted{by}; {near}", *made)


def describe_cleanup(sqlite: bool, rewritten: bool, log_emptied: bool) -> str:
    """Describe what was done to the database after rows were deleted."""
    if not sqlite:
        left = "pages may hold copies until they are used again; its write-ahead log and backups are the operator's"
        return f"PostgreSQL: tables vacuumed, {left}"
    log = "its write-ahead log emptied" if log_emptied else "its write-ahead log is emptied once nobody reads the past"
    if rewritten:
        return f"SQLite: deleted rows overwritten, the file written anew, {log}"
    return f"SQLite: deleted rows overwritten, {log}; pages may hold copies until a VACUUM"


def select_glossary(models: Sequence[ModelReport]) -> dict[str, str]:
    """The definitions of the terms that a receipt uses."""
    kinds = {found.kind for model in models if (found := certificate_of(model)) is not None}
    unused = {"Bound"} if "bound" not in kinds else set()
    unused |= {"Measured"} if "measured" not in kinds else set()
    unused |= set() if any(find_audit(model) for model in models) else {"Audit"}
    return {word: meaning for word, meaning in GLOSSARY.items() if word not in unused}


def find_audit(model: ModelReport) -> Familiarity | None:
    """The audit of a model, or None if it was measured on too few examples to mean anything."""
    return model.audit if model.examples >= MIN_AUDITED_EXAMPLES else None


def describe_audit(audit: Familiarity) -> str:
    """Whether somebody who knows an example can tell that the model was trained on it."""
    return f"{audit.before:.2f} before, {audit.after:.2f} after (0.5: cannot be told apart)"


def describe_disagreement(fraction: float) -> str:
    """How an adapted version and a retrain at the same position differ."""
    return f"{fraction:.2%} of predictions differ between adapted and retrained"


def describe_nearness(model: ModelReport) -> dict[str, str]:
    """Describe how close the model is to one that never saw the person."""
    certificate = certificate_of(model)
    if certificate is None or certificate.bound is None:
        return describe_measurement(certificate.audit) if certificate and certificate.audit else {}
    bound = f"{certificate.bound:.3g} on the distance of the weights to the exact optimum without the person"
    if (relative := certificate.relative) is not None:  # of a length of zero there is no share
        bound += f", {percent(relative)} of their length"
    removal = certificate.removal
    if removal:
        bound = bound.replace("exact optimum", "optimum of the same perturbed objective")
    if model.outcome and model.outcome.tolerance:
        bound += f" (tolerated: {percent(model.outcome.tolerance)})"
    rows = {"Bound": bound}
    if removal:
        promise = f"epsilon {removal.epsilon:g}, delta {removal.delta:g}"
        rows["Certified removal"] = (
            f"{promise}: residual {removal.gradient_norm:.3g} of {removal.gradient_limit:.3g} allowed"
        )
    if (largest := certificate.prediction_bound) is not None:
        rows["Predictions"] = f"none on the holdout would differ by more than {largest:.3g}"
    return rows


def describe_measurement(audit: Audit) -> dict[str, str]:
    """Describe what was measured of a network, which has no bound."""
    rows = {}
    after, before = audit.unseen_loss, audit.unseen_loss_before
    if after is not None and before is not None:
        rows["Measured"] = f"loss of {after:.3g} on examples never seen, {before:.3g} before"
    if (loss := audit.removed_loss) is not None:
        rows["Forgotten"] = f"loss of {loss:.3g} on the {audit.removed} examples that were removed"
        if (named := audit.forgotten_label_rate) is not None:
            rows["Forgotten"] += f"; {named:.1%} are still predicted as they were labelled"
            if (expected := audit.expected_label_rate) is not None:
                rows["Forgotten"] += f" ({expected:.1%} would be, had they never been seen)"
    return rows


def describe_deletions(model: ModelReport) -> str:
    """What was deleted besides versions; "" while nothing was meant to be."""
    if model.deleted is None:
        return ""
    counts = [(model.deleted.examples, "example", ""), (model.deleted.files, "file", " in MLflow")]
    return ", ".join(f"{count_of(n, thing)}{place}" for n, thing, place in counts if n) or "nothing was left to delete"


def describe_purged(model: ModelReport) -> str:
    """Describe which versions were purged."""
    if model.deleted is None or not model.deleted.versions:
        return ""
    which = join_ranges(model.versions.purged if model.versions else [])
    return f"{count_of(model.deleted.versions, 'version')} that knew the person{which and f': {which}'}"


def describe_return(examples: int) -> str:
    """What becomes of the data of a person whose request was refused; "" if there is none."""
    if not examples:
        return ""
    text = "1 record about you was" if examples == 1 else f"{examples} records about you were"
    return f"While your request was open, {text} not used. From now on {'it is' if examples == 1 else 'they are'}."


def percent(fraction: float) -> str:
    """
    >>> percent(0.01), percent(0.000041), percent(2e-9)
    ('1 %', '0.0041 %', 'less than 0.001 %')
    """
    return "less than 0.001 %" if fraction < 1e-5 else f"{100 * fraction:.3g} %"


def join_ranges(numbers: Sequence[int]) -> str:
    """
    >>> join_ranges([1, 2, 3, 5])
    '1-3, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def count_of(number: int, thing: str) -> str:
    """
    >>> count_of(1, "version"), count_of(2, "file")
    ('1 version', '2 files')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"
