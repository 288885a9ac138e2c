"""Receipts and refusals as pages that a person can read and print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 46rem; margin: 3rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; break-after: avoid; }
.statement { font-size: 1.15rem; margin: 1.2rem 0; } .quiet { color: #666; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; vertical-align: top; }
th { font-weight: 600; width: 11rem; } tr { break-inside: avoid; } tr + tr { border-top: 1px solid #e4e4e4; }
code { font-size: .75rem; overflow-wrap: anywhere; } .gone::before { content: "\\2713\\00a0"; color: #2a7d2e; }
@media print { body { margin: 0; padding: 0; max-width: none; font-size: 10.5pt; } section { break-inside: avoid; } }
"""
AUDITED = 10
"""Examples from which on the page tells an audit."""
WORDS = {
    "Example": "one record with its answer, from which a model learns.",
    "Adapted": "the model was moved to where training without this data would have put it.",
    "Bound": "how far from there it can be at most; a model above its tolerance is retrained instead.",
    "Measured": "for a network nothing proves how near it came. It is measured what it makes of the data that was "
    "removed, and it is retrained if that looks as if it knew it.",
    "Retrained": "the model was trained again from nothing, without this data.",
    "Audit": "the chance that one of the examples looks more familiar to the model than one that it never saw. At 0.5 "
    "the two cannot be told apart; with few examples the figure varies by chance.",
}
"""What a reader who does not build models may want to know."""
RIGHTS = (
    "You have the right to lodge a complaint with a supervisory authority, in particular where you live, where you "
    "work, or where you think that your rights were infringed (GDPR Art. 77), and the right to a judicial remedy, "
    "before a court (Art. 79)."
)


def of(receipt: dict[str, Any]) -> str:
    """The page of a receipt."""
    in_time = "late" if receipt["late"] else "in time"
    facts = {
        "Received": day(receipt["received_at"]),
        "Due": day(receipt["due_at"]) + (", extended by two months" if receipt.get("extended") else ""),
        "Completed": f"{day(receipt['completed_at'])}, {in_time}",
        "Examples found": receipt["found"],
        "Request": code(receipt["erasure"]),
        "Steps": "<br>".join(step(event) for event in receipt.get("trail", [])),
        "Person": f"{code(receipt.get('subject_token', ''))}<br>a hash that only the holder of the secret key can make",
    }
    chain = {"This receipt's hash": code(receipt["sha256"]), "The one before it": code(receipt["previous"])}
    parts = [
        f"<h1>Receipt of erasure no. {receipt['number']}</h1>",
        '<p class="quiet">Amend: data and models from which a person was erased</p>',
        f'<p class="statement">{escape(str(receipt["statement"]))}</p>',
        table(facts.items()),
        *(section(model) for model in receipt["models"]),
        f"<section><h2>What the words mean</h2>{table(words(receipt['models']))}</section>"
        if receipt["models"]
        else "",
        "<section><h2>How to check this receipt</h2>",
        "<p>It names nobody. Its hash covers every word of it and the hash of the receipt before it, so that a receipt "
        "which is missing or altered shows: <code>amend receipts verify</code>.</p>",
        f"{table(chain.items())}</section>",
    ]
    return document(f"Receipt of erasure {receipt['number']}", parts)


def letter(refusal: dict[str, Any]) -> str:
    """The page of a refusal: what a person must be told of it (GDPR Art. 12(4))."""
    late = ", after the month that the law allows" if refusal["late"] else ""
    facts = {
        "Received": day(refusal["received_at"]),
        "Refused": f"{day(refusal['refused_at'])}{late}",
        "Request": code(refusal["erasure"]),
    }
    parts = [
        "<h1>Your request to be erased was refused</h1>",
        f'<p class="statement">Reason: {escape(refusal["reason"])}</p>',
        again(refusal["examples"]),
        table(facts.items()),
        f"<section><h2>What you can do</h2><p>{escape(refusal['rights'])}</p></section>",
    ]
    return document(f"Refusal of request {refusal['erasure']}", parts)


def again(examples: int) -> str:
    """What becomes of the data of a person whose request was refused."""
    if not examples:
        return ""
    said = "1 record about you was" if examples == 1 else f"{examples} records about you were"
    return (
        f"<p>While your request was open, {said} not used. From now on {'it is' if examples == 1 else 'they are'}.</p>"
    )


def document(title: str, parts: Iterable[str]) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def step(event: dict[str, str]) -> str:
    """What somebody did about the request."""
    return escape(f"{event['what']} by the holder of key {event['by']}, ") + day(event["at"])


def words(models: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """The words that this receipt uses: of a network it says nothing that holds for other models alone."""
    kinds = {(model.get("certificate") or {}).get("kind") for model in models}
    unused = {"Bound"} if "bound" not in kinds else set()
    unused |= {"Measured"} if "measured" not in kinds else set()
    unused |= set() if any(audit_of(model) for model in models) else {"Audit"}
    return [(word, meaning) for word, meaning in WORDS.items() if word not in unused]


def audit_of(model: dict[str, Any]) -> dict[str, float]:
    """The audit, if it says anything: of a few examples the figure is chance."""
    return (model.get("audit") or {}) if model.get("examples", 0) >= AUDITED else {}


def section(model: dict[str, Any]) -> str:
    """What was done in one model."""
    words = str(model.get("words", ""))
    facts: dict[str, Any] = {"Examples": model["examples"], "How": escape(words[:1].upper() + words[1:])}
    facts |= nearness(model)
    if audit := audit_of(model):
        facts["Audit"] = f"{audit['before']:.2f} before, {audit['after']:.2f} after (0.5: cannot be told apart)"
    if model.get("disagreement") is not None:
        facts["Disagreement"] = f"{model['disagreement']:.2%} of predictions differ between adapted and retrained"
    if model.get("version"):
        facts["Version"] = f"{model['version']}<br>{code(model['sha256'])}"
    if "deleted" in model:
        counts = [counted(n, what) for what, n in model["deleted"].items() if n and what != "versions"]
        facts["Deleted"] = escape(", ".join(counts)) or "nothing was left to delete"
        if gone := model["deleted"].get("versions"):
            which = ranges((model.get("versions") or {}).get("purged", []))
            facts["Gone"] = f"{counted(gone, 'versions')} that knew the person{which and f': {which}'}"
    if model.get("kept_until"):
        facts["Kept for a while"] = (
            f"versions that knew the person, until {day(model['kept_until'])} by the model's policy"
        )
    for entry in (model.get("versions") or {}).get("stay", []):
        numbers = ranges(entry["versions"])
        facts["Versions that stay"] = "<br>".join(
            filter(None, (facts.get("Versions that stay"), escape(f"{numbers}: {entry['why']}")))
        )
    left = (f"{what}: {n or 'none left'}" for what, n in model.get("checked", {}).items())
    facts["Looked for again"] = "<br>".join(f'<span class="gone">{escape(line)}</span>' for line in left)
    facts["Database"] = escape(str(model.get("database", "")))
    facts["Caches"] = escape(str(model.get("caches", "")))
    return f"<section><h2>Model {escape(str(model['model']))}</h2>{table(facts.items())}</section>"


def nearness(model: dict[str, Any]) -> dict[str, str]:
    """How near the model is to one that never saw the person."""
    certificate = model.get("certificate") or {}
    if certificate.get("bound") is None:
        return measured(certificate.get("audit") or {})
    bound = f"{certificate['bound']:.3g} on the distance of the weights to the exact optimum without the person"
    if certificate.get("relative") is not None:  # of a length of zero there is no share
        bound += f", {percent(certificate['relative'])} of their length"
    if certificate.get("removal"):
        bound = bound.replace("exact optimum", "optimum of the same perturbed objective")
    if model.get("tolerance"):
        bound += f" (tolerated: {percent(model['tolerance'])})"
    told = {"Bound": bound}
    if removal := certificate.get("removal"):
        promise = f"epsilon {removal['epsilon']:g}, delta {removal['delta']:g}"
        told["Certified removal"] = f"{promise}: residual {removal['spent']:.3g} of {removal['allowed']:.3g} allowed"
    if certificate.get("prediction_bound") is not None:
        most = f"{certificate['prediction_bound']:.3g}"
        told["Predictions"] = f"none on the holdout would differ by more than {most}"
    return told


def percent(share: float) -> str:
    """
    >>> percent(0.01), percent(0.000041), percent(2e-9)
    ('1 %', '0.0041 %', 'less than 0.001 %')
    """
    return "less than 0.001 %" if share < 1e-5 else f"{100 * share:.3g} %"


def measured(audit: dict[str, Any]) -> dict[str, str]:
    """What was measured of a network, for which there is no bound."""
    told = {}
    if audit.get("unseen_loss") is not None and audit.get("unseen_loss_before") is not None:
        before = f"{audit['unseen_loss_before']:.3g}"
        told["Measured"] = f"loss of {audit['unseen_loss']:.3g} on examples never seen, {before} before"
    if audit.get("removed_loss") is not None:
        told["Forgotten"] = f"loss of {audit['removed_loss']:.3g} on the {audit['removed']} examples that were removed"
        if audit.get("still_named") is not None:
            told["Forgotten"] += f"; {audit['still_named']:.1%} are still predicted as they were labelled"
            if audit.get("expected_named") is not None:
                told["Forgotten"] += f" ({audit['expected_named']:.1%} would be, had they never been seen)"
    return told


def ranges(numbers: Sequence[int]) -> str:
    """
    >>> ranges([1, 2, 3, 5])
    '1-3, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def counted(number: int, what: str) -> str:
    """
    >>> counted(1, "versions"), counted(2, "files in MLflow"), counted(1, "files in MLflow")
    ('1 version', '2 files in MLflow', '1 file in MLflow')
    """
    thing, space, place = what.partition(" ")
    return f"{number} {thing.removesuffix('s') if number == 1 else thing}{space}{place}"


def table(rows: Iterable[tuple[str, Any]]) -> str:
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{value}</td></tr>" for name, value in rows if value != "")
    return f"<table>{cells}</table>"


def code(text: object) -> str:
    return f"<code>{escape(str(text))}</code>"


def day(moment: str) -> str:
    return escape(moment[:16].replace("T", " ")) + " UTC"
