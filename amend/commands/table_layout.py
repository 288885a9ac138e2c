"""Fits a table to a narrow terminal: columns are dropped, words are not broken."""

from rich.text import Text

Cells = dict[str, list[Text]]
"""Heading -> the cells of the column."""

GAP = 2
"""Spaces between two columns."""
DISPENSABLE = (
    *("from", "to", "created", "received", "last used", "parent", "seconds", "holdout", "head", "progress"),
    *("distance", "speedup", "disagreement"),
)
"""Columns that are dropped first; then the others, from the right."""
MIN_COLUMNS = 3
"""Columns that are always kept."""
MAX_UNBROKEN = len("2026-03-01 12:30Z")
"""A text up to this length stays on one line; a longer one may be wrapped at a space."""
MAX_WORD = len("4e1d7a90-8c35-4b62-a7f1-93d05c2be684")
"""A longer word is broken."""
SHORT_ID = 8


def narrow(cells: Cells, room: int) -> list[str]:
    """Drop columns until the others fit, and return the headings of the dropped ones.

    Ids are shortened only if that is not enough: commands accept the first characters of an id if they are unique.
    """
    names = list(cells)
    order = [name for name in DISPENSABLE if name in names[1:]]
    order += [name for name in reversed(names[1:]) if name not in order]
    left_out = []
    for name in order:
        if fits(cells, room) or len(cells) <= MIN_COLUMNS:
            break
        del cells[name]
        left_out.append(name)
    if "id" in cells and not fits(cells, room):
        cells["id"] = [shorten(cell) for cell in cells["id"]]
    return [name for name in names if name in left_out]


def allot_widths(cells: Cells, room: int) -> dict[str, int | None]:
    """The width of each column; None: chosen by rich."""
    if not fits(cells, room):
        return dict.fromkeys(cells)
    widths = {name: least_width(name, column) for name, column in cells.items()}
    spare = room - total(widths)
    for name, column in cells.items():
        wanted = max(len(name), *(cell.cell_len for cell in column))
        more = min(max(wanted - widths[name], 0), spare)
        widths[name] += more
        spare -= more
    return {**widths}


def fits(cells: Cells, room: int) -> bool:
    return total({name: least_width(name, column) for name, column in cells.items()}) <= room


def total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def least_width(heading: str, column: list[Text]) -> int:
    """The smallest width of a column at which no word is broken."""
    return max(longest_word(heading), *(longest_part(cell) for cell in column))


def longest_part(cell: Text) -> int:
    return (
        cell.cell_len if cell.cell_len <= MAX_UNBROKEN else min(MAX_WORD, max(MAX_UNBROKEN, longest_word(cell.plain)))
    )


def longest_word(text: str) -> int:
    """
    >>> longest_word("within tolerance"), longest_word("")
    (9, 0)
    """
    return max((Text(word).cell_len for word in text.split()), default=0)


def shorten(id: Text) -> Text:
    return id if id.cell_len <= SHORT_ID + 1 else Text(id.plain[:SHORT_ID] + "\N{HORIZONTAL ELLIPSIS}")
