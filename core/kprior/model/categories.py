"""Categories as numbers: the code of a value is its index among the column's values; unseen values have rules.

The service, the encoder and published models all use these functions, so that they agree.
"""

from numbers import Integral, Real

from .spec import CategoryColumn

OTHER = "other"
"""Name of an unseen value where its text is not known."""
UNSEEN = -1.0
"""Code of an unseen value. It is not an index, so it stays the same when the column gets more values."""
SAME: dict[int | str, tuple[str, ...]] = {
    **{0: ("false", "False", "FALSE"), 1: ("true", "True", "TRUE")},
    **{"false": ("0", "0.0"), "true": ("1", "1.0")},
}
"""Spellings of the same value, for columns that are boolean in one place and have numbers in another."""


def texts_of(values: list[int | str]) -> dict[str, float]:
    """Map every text that CSV may have for a value to the code of the value.

    >>> texts_of(["a", 2, "true"])
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


def spellings_of(values: list[int | str]) -> dict[str, float]:
    """Like `texts_of`, for columns: true and false also mean 1 and 0, and the other way round.

    >>> spellings_of(["a", 2, "true"])
    {'a': 0.0, '2': 1.0, 'true': 2.0, '2.0': 1.0, 'True': 2.0, 'TRUE': 2.0, '1': 2.0, '1.0': 2.0}
    >>> spellings_of([0, 1])["true"]
    1.0
    """
    codes = texts_of(values)
    for value in values:
        for spelling in SAME.get(value, ()):
            codes.setdefault(spelling, codes[str(value)])
    return codes


def spell(value: object) -> str:
    """Convert a value to text. Raises ValueError for fractions, because no category is a fraction.

    >>> spell(2.0), spell("a"), spell(True)
    ('2', 'a', 'True')
    """
    if isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
        if not number.is_integer():
            raise ValueError("Expected text or a whole number.")
        return str(int(number))
    return str(value)


def unseen_code(column: CategoryColumn) -> float | None:
    """Code that an unseen value is stored as; None if unseen values are refused.

    >>> unseen_code({"name": "plan", "type": "category", "values": ["free", "paid"], "other": True})
    -1.0
    >>> unseen_code({"name": "plan", "type": "category", "values": ["free", "other"], "other": True})
    1.0
    """
    if not column.get("other", False):
        return None
    return float(column["values"].index(OTHER)) if OTHER in column["values"] else UNSEEN


def indicators_of(column: CategoryColumn) -> list[str]:
    """Names of a column's indicators: one for each value, one for unseen values, one for missing values.

    >>> indicators_of({"name": "plan", "type": "category", "values": ["free", "paid"], "other": True})
    ['plan = free', 'plan = paid', 'plan = other', 'plan is missing']
    """
    name = column["name"]
    other = [f"{name} = {OTHER}"] if unseen_code(column) == UNSEEN else []
    return [*(f"{name} = {value}" for value in column["values"]), *other, f"{name} is missing"]
