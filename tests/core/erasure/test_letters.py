"""Letters state what is true in the present state of a request, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest

from core.erasure.letters import Circumstances, LetterKind, list_letters, write_letter
from core.errors import NotFound
from core.register.records import Acknowledgement
from core.register.signing import Head
from core.tables.erasures import Erasure, ErasureState, Part

HEAD = Head(size=1, root="", time="", signature="", key_id="")
ACKNOWLEDGEMENT = Acknowledgement(leaf=0, record=None, salt=None, commitment="", path=[], head=HEAD)
UNUSED, IN_USE = "no new training", "stay in use until"
NOT_FOUND, CLOSED, DONE = "have not found any data", "We closed it on 9 March 2026.", "We completed it on 9 March 2026."
FOUND = [Part(model="churn", positions=[1], restricted=[])]


def request(state: ErasureState) -> Erasure:
    first, last = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 9, tzinfo=UTC)
    return Erasure(state=state, received_at=first, created_at=first, due_at=last, completed_at=last, extension=None)


def write(kind: LetterKind, state: ErasureState, parts: list[Part]) -> str:
    known = Circumstances(parts=parts, acknowledgement=ACKNOWLEDGEMENT, receipt=None)
    return " ".join(write_letter(kind, request(state), known).paragraphs)


@pytest.mark.parametrize(
    ("state", "parts", "expected"),
    [
        (ErasureState.HELD, FOUND, {UNUSED, IN_USE}),
        (ErasureState.FAILED, FOUND, {UNUSED, IN_USE}),
        (ErasureState.UNMATCHED, [], {NOT_FOUND}),
        (ErasureState.REFUSED, FOUND, {CLOSED}),
        (ErasureState.WITHDRAWN, FOUND, {CLOSED}),
        (ErasureState.COMPLETED, FOUND, {DONE}),
        (ErasureState.COMPLETED, [], {DONE}),
    ],
)
def test_a_confirmation_does_not_claim_that_data_of_an_ended_request_is_unused(
    state: ErasureState, parts: list[Part], expected: set[str]
) -> None:
    text = write(LetterKind.CONFIRMATION, state, parts)
    assert {sentence for sentence in (UNUSED, IN_USE, NOT_FOUND, CLOSED, DONE) if sentence in text} == expected


def test_a_confirmation_counts_from_the_last_filing_which_may_have_added_identifiers() -> None:
    acknowledgement = {**ACKNOWLEDGEMENT, "record": {"kind": "filed", "at": "2026-03-05T09:00:00Z"}}
    known = Circumstances(parts=FOUND, acknowledgement=cast(Acknowledgement, acknowledgement), receipt=None)
    letter = write_letter(LetterKind.CONFIRMATION, request(ErasureState.RECEIVED), known)
    assert letter.paragraphs[0].startswith("On 1 March 2026, we received")
    assert letter.paragraphs[1].startswith("Since 5 March 2026, no new training has used")


@pytest.mark.parametrize(("parts", "expected"), [(FOUND, {UNUSED, IN_USE}), ([], {NOT_FOUND})])
def test_a_restriction_says_which_models_are_still_in_use(parts: list[Part], expected: set[str]) -> None:
    text = write(LetterKind.RESTRICTION, ErasureState.RESTRICTED, parts)
    assert {sentence for sentence in (UNUSED, IN_USE, NOT_FOUND) if sentence in text} == expected
    assert "we do not use it" not in text


def test_a_lifted_restriction_is_no_longer_confirmed() -> None:
    assert list_letters(request(ErasureState.LIFTED)) == [LetterKind.LIFTING]
    with pytest.raises(NotFound):
        write(LetterKind.RESTRICTION, ErasureState.LIFTED, FOUND)


def test_a_completion_says_in_a_sentence_what_is_kept() -> None:
    receipt = {"number": 7, "statement": "Done.", "recognised_until": "2027-03-09T08:00:00.123456Z"}
    known = Circumstances(parts=FOUND, acknowledgement=None, receipt=receipt)
    letter = write_letter(LetterKind.COMPLETION, request(ErasureState.COMPLETED), known)
    assert letter.paragraphs[3].startswith("Until 9 March 2027, we keep a keyed hash of each identifier")
