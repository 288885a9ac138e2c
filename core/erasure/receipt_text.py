"""The texts of receipts and refusals: all sentences about what was done to a person's data.

`receipt_content.py` has the facts; the templates of the service's pages have the headings and the layout.
"""

from collections.abc import Sequence
from enum import StrEnum

from core.erasure.receipt_content import ComparisonSummary, Familiarity, Method, ModelReport, Outcome
from core.kprior.certificate.audit import Audit
from core.kprior.certificate.certificate import Certificate
from core.tables.versions import Comparison, Version, VersionKind
from core.versions.commitments import commit_to
from core.versions.privacy_rounding import coarse_certificate

CACHES = "programs that make predictions drop the weights of earlier versions from their memory within a minute"
MIN_AUDITED_EXAMPLES = 10
"""Minimum number of examples for which the page shows an audit."""
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
    ANALYSES = "analyses"
    MLFLOW = "weights in MLflow"
    MLFLOW_PURGED = "weights of purged versions in MLflow"
    MODEL_EXAMPLES = "examples of the model"
    MODEL_FILES = "files of the model"
    MODEL_MLFLOW = "deletions that MLflow has still to make"


TRACE_WORDS = {
    Trace.BY_POSITION: "examples at their positions",
    Trace.BY_PERSON: "examples under the identifiers",
    Trace.PURGED_FILES: "files of deleted versions",
    Trace.ORPHANS: "files that belong to no version",
    Trace.SAMPLE: "examples that measure the model (holdout)",
    Trace.MEMORY: "examples in the memory of the version in use",
    Trace.ANALYSES: "results of analyses that used the examples",
    Trace.MLFLOW: "weights in MLflow",
    Trace.MLFLOW_PURGED: "weights of deleted versions in MLflow",
    Trace.MODEL_EXAMPLES: "examples of the model",
    Trace.MODEL_FILES: "files of the model",
    Trace.MODEL_MLFLOW: "deletions in MLflow that are not done yet",
}
"""The kinds of traces in the words of the page."""


def describe_trace(name: str) -> str:
    """What was searched for; receipts of earlier releases may have other names."""
    return TRACE_WORDS[Trace(name)] if name in list(Trace) else name


class KeepReason(StrEnum):
    """Why a version is not purged."""

    WITHOUT = "made without this data"
    DERIVED = "adapted without this data, from weights that were trained on it"
    KEPT = "trained on this data; kept for a while, out of use"
    BEFORE = "made before this data arrived"


def write_statement(models: Sequence[ModelReport], identifiers: int = 1) -> str:
    """The receipt's summary, in a few sentences."""
    under = "the identifier" if identifiers == 1 else f"the {identifiers} identifiers"
    if not models:
        return f"No example was found under {under} of this request, so nothing was deleted."
    count = sum(model.examples for model in models)
    where = count_of(len(models), "model")
    text = f"{count_of(count, 'example')} under {under} of this request {'was' if count == 1 else 'were'} deleted from "
    text += f"{where}. A search afterwards found none that were left."
    if not count:  # they were removed and deleted before the request
        text = f"The content of the examples under {under} of this request had already been deleted from {where}. The "
        text += "remaining references to them were deleted, and a search afterwards found none that were left."
    return " ".join((text, *describe_outcomes(models)))


def describe_outcomes(models: Sequence[ModelReport]) -> list[str]:
    """How the models forgot, and what is left of the data; empty for a model whose outcome says it all."""
    found = []
    if unbounded := [model.model for model in models if lacks_bound(model)]:
        found.append(
            f"{join_names(unbounded, 'Model')} {'is a network' if len(unbounded) == 1 else 'are networks'} that "
            f"{'was' if len(unbounded) == 1 else 'were'} adapted from weights trained on this data: it is not proven "
            "that no traces are left."
        )
    if unmeasured := [model.model for model in models if lacks_measurement(model)]:
        found.append(
            f"Too few examples were deleted to measure what is left in {join_names(unmeasured, 'model')} (at least "
            f"{MIN_AUDITED_EXAMPLES} are needed)."
        )
    if until := max(model.kept_until or "" for model in models):
        found.append(f"Versions trained on this data are kept, out of use, until {until[:10]}.")
    return found


def join_names(names: Sequence[str], noun: str) -> str:
    """
    >>> join_names(["churn"], "Model"), join_names(["a", "b"], "Model")
    ('Model churn', 'Models a, b')
    """
    return f"{noun}{'' if len(names) == 1 else 's'} {', '.join(names)}"


def lacks_bound(model: ModelReport) -> bool:
    """Whether a model was adapted without a bound on its distance to a retrain."""
    adapted = model.outcome is not None and model.outcome.method is Method.ADAPTED
    certificate = certificate_of(model)
    return adapted and (certificate is None or certificate.kind != "bound")


def lacks_measurement(model: ModelReport) -> bool:
    """Whether it was not even measured what is left in an adapted network."""
    certificate = certificate_of(model)
    audit = certificate.audit if certificate else None
    return lacks_bound(model) and (audit is None or audit.removed_loss is None)


def certificate_of(model: ModelReport) -> Certificate | None:
    return model.outcome.certificate if model.outcome else None


WITHDRAWN = Outcome(Method.WITHDRAWN, "no version of the model is in use, so it makes no predictions")
DELETED = Outcome(Method.DELETED, "the model was deleted with all its versions")


def describe_unknown(champion: Version) -> Outcome:
    """The outcome if the version in use is older than the person's first example."""
    words = "the version in use was made before this data arrived, and was not trained on it"
    return Outcome(Method.UNKNOWN, words, champion.number, commit_to(champion))


def describe_outcome(version: Version, comparison: Comparison | None, tolerance: float) -> Outcome:
    """The outcome of a model, from the version that forgot."""
    certificate = version.certificate
    if certificate is not None and certificate.kind == "measured":
        certificate = coarse_certificate(certificate)
    compared = ComparisonSummary(comparison.result["disagreement"]) if comparison is not None else None
    made = (version.number, commit_to(version), certificate, compared)
    if version.kind is VersionKind.TRAINED:
        return Outcome(Method.RETRAINED, "retrained without this data", *made)
    by = " by training on all remaining examples" if version.method == "warm" else ""
    if certificate is not None and certificate.kind == "bound":
        perturbed = " with the same perturbation" if certificate.removal else ""
        of = "a retrain of the head" if certificate.scope == "head" else "a retrain"
        near = f"within {certificate.bound:.3g} of {of} without this data{perturbed}"
        near += "; the bytes of its file depend only on the remaining examples and their positions"
        return Outcome(Method.ADAPTED, f"adapted{by}; {near}", *made, tolerance)
    near = "from weights that were trained on this data; how close it is to a retrain without this data is not proven"
    return Outcome(Method.ADAPTED, f"adapted{by} without this data, {near}", *made)


def describe_encoder(encoder: dict[str, str]) -> str:
    """The frozen encoder of a model, and whether it may depend on the person's data."""
    named = " ".join(part for part in (encoder["kind"], encoder.get("digest", "")) if part)
    if encoder["trained_on"] == "examples":
        return f"{named}: it was fitted on examples that Amend stores"
    return f"{named}: according to its operator, it has seen none of the examples that Amend stores"


RESIDUE = (
    "; the encoder of the model was fitted before the request on examples that may include this data, and was not "
    "replaced: it may hold traces of it"
)
"""Added to the outcome if the policy permits it."""


def describe_cleanup(sqlite: bool, rewritten: bool, log_emptied: bool) -> str:
    """Describe what was done to the database after rows were deleted."""
    if not sqlite:
        left = "its files, its write-ahead log and its backups may contain copies until they are replaced"
        return f"PostgreSQL: the space of deleted rows was released; {left}"
    log = "its write-ahead log emptied" if log_emptied else "its write-ahead log is emptied when no program reads it"
    if rewritten:
        return f"SQLite: deleted rows overwritten, the file rewritten, {log}"
    return f"SQLite: deleted rows overwritten, {log}; the file may contain copies until it is rewritten"


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
    bound = f"{certificate.bound:.3g} on the distance of the weights to the exact optimum without this data"
    if (relative := certificate.relative) is not None:  # of a length of zero there is no share
        bound += f", {percent(relative)} of their length"
    removal = certificate.removal
    if removal:
        bound = bound.replace("exact optimum", "optimum with the same perturbation")
    if model.outcome and model.outcome.tolerance:
        bound += f" (tolerated: {percent(model.outcome.tolerance)})"
    rows = {"Bound": bound}
    if removal:
        promise = f"epsilon {removal.epsilon:g}, delta {removal.delta:g}"
        rows["Certified removal"] = (
            f"{promise}: residual {removal.gradient_norm:.3g} of {removal.gradient_limit:.3g} allowed"
        )
    if (largest := certificate.prediction_bound) is not None:
        rows["Predictions"] = f"no prediction for a holdout example would differ by more than {largest:.3g}"
    return rows


def describe_measurement(audit: Audit) -> dict[str, str]:
    """Describe what was measured of a network, which has no bound."""
    rows = {}
    after, before = audit.unseen_loss, audit.unseen_loss_before
    if after is not None and before is not None:
        rows["Measured"] = f"loss of {after:.3g} on examples that it was not trained on, {before:.3g} before"
    if (loss := audit.removed_loss) is not None:
        rows["Forgotten"] = f"loss of {loss:.3g} on the {audit.removed} examples that were removed"
        if (named := audit.forgotten_label_rate) is not None:
            rows["Forgotten"] += f"; {named:.1%} are still predicted as they were labelled"
            if (expected := audit.expected_label_rate) is not None:
                rows["Forgotten"] += f" ({expected:.1%} are expected if it had never seen them)"
    return rows


def describe_deletions(model: ModelReport) -> str:
    """What was deleted besides versions; "" while nothing was meant to be."""
    if model.deleted is None:
        return ""
    deleted = model.deleted
    counts = [(deleted.examples, "example", ""), (deleted.files, "file", " in MLflow")]
    counts.append((deleted.analyses, "stored result", " of analyses"))
    return ", ".join(f"{count_of(n, thing)}{place}" for n, thing, place in counts if n) or "nothing was left to delete"


def describe_purged(model: ModelReport) -> str:
    """Describe which versions were purged."""
    if model.deleted is None or not model.deleted.versions:
        return ""
    which = join_ranges(model.versions.purged if model.versions else [])
    return f"{count_of(model.deleted.versions, 'version')} trained on this data{which and f': {which}'}"


def describe_recognition(until: str) -> str:
    """What is kept about the person after the erasure, and why; `until` is a date."""
    hashed = f"a keyed hash of each identifier that was searched for, until {until[:10]}"
    return f"{hashed}; it serves only to recognise new data about the person, and does not contain the identifier"


def describe_return(found: int, returned: int, in_use: Sequence[str]) -> str:
    """What became of the data of a person whose request was refused; "" if nothing did.

    `found` is the number of examples about the person, `returned` how many of them are in force again, and `in_use`
    names the models whose version in use had been trained on them when the request was filed.
    """
    if not found:
        return "We found no record under the identifiers of your request."
    if not returned:
        return ""
    one = returned == 1
    text = f"While your request was open, {'1 record' if one else f'{returned} records'} about you "
    text += f"{'was' if one else 'were'} left out of new training."
    if in_use:
        text += f" Models that had already been trained on {'it' if one else 'them'} were in use during that time: "
        text += f"{', '.join(in_use)}."
    return f"{text} From now on, the {'record is' if one else 'records are'} used again."


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
