"""Texts of unseen category values, as they are stored with an example: JSON, by the index of the column in its layout.

Adding one of the texts to the values of its column then recovers the examples that have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports torch, which the scheduler does not need
    from core.kprior.data.schema_conversion import Conversion


def encode(texts: Mapping[int, str]) -> str | None:
    """
    >>> encode({1: "trial"}), encode({})
    ('{"1": "trial"}', None)
    """
    return json.dumps({str(j): texts[j] for j in sorted(texts)}, ensure_ascii=False) if texts else None


def decode(stored: str | None) -> dict[int, str]:
    """
    >>> decode('{"1": "trial"}'), decode(None)
    ({1: 'trial'}, {})
    """
    return {} if stored is None else {int(j): text for j, text in json.loads(stored).items()}


def convert(conversion: Conversion, stored: str | None) -> str | None:
    """The texts of an example after a change of its columns, without those that are now values."""
    return None if stored is None else encode(conversion.unseen(decode(stored)))


def without_nulls(stored: Sequence[str | None]) -> Sequence[str | None] | None:
    """The texts of several examples; None if no example has any."""
    return stored if any(text is not None for text in stored) else None
