"""Categories as numbers: the place of a value among its column's, and what becomes of values that are not among them.

The service, the encoder and published models all read categories by these rules, so that they agree.
"""

from __future__ import annotations

from numbers import Integral, Real

from .spec import CategoryColumn

OTHER = "other"
"""What an unseen value is called: only that it was unseen is stored."""
UNSEEN = -1.0
"""Its code; no place, so that it stays what it is when a column gets more values."""


def spellings_of(values: list[int | str]) -> dict[str, float]:
    """The code of each value by the texts that mean it, which are all that CSV has.

    >>> spellings_of(["a", 2, "true"])
    {'a': 0.0, '2': 1.0, 'true': 2.0, '2.0': 1.0, 'True': 2.0, 'TRUE': 2.0}
    """
    codes = {str(value): float(code) for code, value in enumerate(values)}
    for value in values:
        if isinstance(value, int):  # a whole number becomes 2.0 where its column has a missing value
            codes.setdefault(f"{value}.0", codes[str(value)])
        elif value in ("true", "false"):  # Python writes True
            codes.setdefault(value.capitalize(), codes[value])
            codes.setdefault(value.upper(), codes[value])
    return codes


def spell(value: object) -> str:
    """A value that may be no text as one; ValueError for fractions, which no category is.

    >>> spell(2.0), spell("a"), spell(True)
    ('2', 'a', 'True')
    """
    if isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
        if not number.is_integer():
            raise ValueError("expected text or a whole number")
        return str(int(number))
    return str(value)


def unseen_code(column: CategoryColumn) -> float | None:
    """What an unseen value is stored as; None where it is refused.

    >>> unseen_code({"name": "plan", "type": "category", "values": ["free", "paid"], "other": True})
    -1.0
    >>> unseen_code({"name": "plan", "type": "category", "values": ["free", "other"], "other": True})
    1.0
    """
    if not column.get("other", False):
        return None
    return float(column["values"].index(OTHER)) if OTHER in column["values"] else UNSEEN


def indicators_of(column: CategoryColumn) -> list[str]:
    """What the indicators of a column are called: one for each value, one for unseen values, one for missing ones.

    >>> indicators_of({"name": "plan", "type": "category", "values": ["free", "paid"], "other": True})
    ['plan = free', 'plan = paid', 'plan = other', 'plan is missing']
    """
    name = column["name"]
    other = [f"{name} = {OTHER}"] if unseen_code(column) == UNSEEN else []
    return [*(f"{name} = {value}" for value in column["values"]), *other, f"{name} is missing"]
