"""The sentences of a receipt about what it does not cover, and its statement: each is there exactly if it is true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.erasure.limits import ModelsOutside, write_limits
from core.erasure.receipt_content import Copy, ModelReport, model_from
from core.erasure.receipt_text import DELETED, WITHDRAWN, write_statement
from core.settings import Settings
from tests.core.conftest import MakeSettings

NONE = ModelsOutside([], [])
PLAIN = ModelReport(model="churn", examples=3, outcome=WITHDRAWN, copies=[])
COPIED = replace(PLAIN, copies=[Copy("weights_downloaded", "2026-03-01T09:00:00Z", "k1", "analyst", 2)])
SENTENCES = {
    "case": "Upper and lower case make no difference.",
    "aliases": "these 2 identifiers",
    "near": "under 1 similar spelling that the request does not include",
    "unsearchable": "not assigned to any person, and that could not be searched: a, b.",
    "copies": "The copies listed above left Amend before the erasure.",
    "no copies": "The audit log shows no download",
    "lists": "It was not examined who read this data in lists of examples.",
    "exported": "was exported or reported once on 2026-03-01",
    "exported again": "was exported or reported 2 times, the last time on 2026-04-02",
    "mlflow": "MLflow does not record who loaded a version from it.",
    "toward": "`toward`): c.",
}
ALWAYS = {"one": "Backups were not searched.", "two": "Examples about the person under another identifier"}
Facts = dict[str, Any]
CASES: dict[str, tuple[Facts, set[str]]] = {
    "nothing found": ({"models": []}, set()),
    "found": ({}, {"no copies", "lists"}),
    "copied": ({"models": [PLAIN, COPIED]}, {"copies", "lists"}),
    "an alias": ({"identifiers": 2}, {"aliases", "no copies", "lists"}),
    "a similar spelling": ({"near_matches": 1}, {"near", "no copies", "lists"}),
    "caseless": ({"settings": {"caseless_subjects": True}}, {"case", "no copies", "lists"}),
    "MLflow": ({"settings": {"mlflow_url": "http://mlflow"}}, {"mlflow", "no copies", "lists"}),
    "MLflow, nothing found": ({"settings": {"mlflow_url": "http://mlflow"}, "models": []}, set()),
    "without subjects": ({"outside": ModelsOutside(["a", "b"], [])}, {"unsearchable", "no copies", "lists"}),
    "exported": ({"exports": ["2026-03-01T09:00:00Z"]}, {"exported", "no copies", "lists"}),
    "exported twice": (
        {"exports": ["2026-03-01T09:00:00Z", "2026-04-02T09:00:00Z"]},
        {"exported again", "no copies", "lists"},
    ),
    "toward": ({"outside": ModelsOutside([], ["c"])}, {"toward", "no copies", "lists"}),
}


@pytest.mark.parametrize(("facts", "expected"), CASES.values(), ids=CASES.keys())
def test_a_limit_is_stated_exactly_if_it_applies(make_settings: MakeSettings, facts: Facts, expected: set[str]) -> None:
    settings: Settings = make_settings(**{"mlflow_url": "", **facts.get("settings", {})})
    given = {"identifiers": 1, "near_matches": 0, "models": [PLAIN], "outside": NONE, "exports": []} | facts
    text = " ".join(write_limits(settings, **{name: given[name] for name in given if name != "settings"}))
    assert {name for name, sentence in SENTENCES.items() if sentence in text} == expected
    assert all(sentence in text for sentence in ALWAYS.values())


def network(**audit: Any) -> ModelReport:
    certificate = {"kind": "measured", "bound": None, "audit": audit or None}
    return model_from({"model": "net", "examples": 3, "method": "adapted", "certificate": certificate})


BOUNDED = model_from(
    {"model": "glm", "examples": 1, "method": "adapted", "certificate": {"kind": "bound", "bound": 0.1}}
)
UNPROVEN, UNMEASURED, KEPT = (
    "it is not proven that no traces",
    "Too few examples",
    "are kept, out of use, until 2026-04-01",
)
STATEMENTS = {
    "nothing": ([], set()),
    "withdrawn": ([PLAIN], set()),
    "deleted": ([replace(PLAIN, outcome=DELETED)], set()),
    "bounded": ([BOUNDED], set()),
    "measured network": ([network(removed=20, removed_loss=0.4)], {UNPROVEN}),
    "unmeasured network": ([BOUNDED, network()], {UNPROVEN, UNMEASURED}),
    "kept": ([replace(BOUNDED, kept_until="2026-04-01T00:00:00Z")], {KEPT}),
}


@pytest.mark.parametrize(("models", "expected"), STATEMENTS.values(), ids=STATEMENTS.keys())
def test_the_statement_says_what_was_not_proven_and_what_is_kept(models: list[ModelReport], expected: set[str]) -> None:
    text = write_statement(models)
    assert {sentence for sentence in (UNPROVEN, UNMEASURED, KEPT) if sentence in text} == expected
    assert ("No example was found" in text) is (not models)
    assert ("deleted from" in text) is bool(models)
    assert "about this person" not in text


def test_numbers_agree_with_their_nouns() -> None:
    one = write_statement([replace(PLAIN, examples=1)])
    assert one.startswith("1 example under the identifier of this request was deleted from 1 model.")
    two = write_statement([PLAIN, BOUNDED], identifiers=2)
    assert two.startswith("4 examples under the 2 identifiers of this request were deleted from 2 models.")
    gone = write_statement([replace(PLAIN, examples=0)])
    assert gone.startswith("The content of the examples under the identifier of this request had already been deleted")
