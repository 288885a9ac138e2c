"""More of ``amend models``: test-then-train metrics and drift."""

from collections.abc import Callable, Sequence
from typing import Annotated

from amend.client import Client
from amend.commands import output
from amend.commands.connection import After, Connection, Limit, fail, option
from amend.commands.models import Name
from amend.responses import ColumnDrift, PredictionDrift, QualityWindow


def contestant_column(contestant: str, metric: str) -> Callable[[QualityWindow], object]:
    return lambda window: (getattr(window, contestant) or {}).get(metric)


def quality_columns(windows: Sequence[QualityWindow]) -> output.Columns[QualityWindow]:
    """The loss, and accuracy or RMSE, of the champion, the frozen version and the baseline."""
    metrics = [m for m in ("loss", "accuracy", "auc", "rmse") if any(m in window.champion for window in windows)]
    columns: dict[str, Callable[[QualityWindow], object]] = {
        "from": lambda window: output.format_time(window.from_),
        "rows": lambda window: window.rows,
        "champion": lambda window: window.champion.get("version"),
    }
    for metric in metrics:
        for contestant in ("champion", "frozen", "baseline"):
            if any(metric in (getattr(window, contestant) or {}) for window in windows):
                name = metric if contestant == "champion" else f"{metric} ({contestant})"
                columns[name] = contestant_column(contestant, metric)
    columns["alarm"] = lambda window: "alarm" if window.alarm else None
    return columns


def quality(
    connection: Connection,
    model: Name,
    window: Annotated[str, option("--window", "Length of the windows: hour, day, week or job.", "KIND")] = "day",
    limit: Limit = None,
    after: After = None,
) -> None:
    """Show test-then-train metrics: how well the champion predicted new examples before it was trained on them.

    Example: amend models quality churn --window week
    """
    if window not in ("hour", "day", "week", "job"):
        fail(f"--window: {window!r} is not one of hour, day, week, job.")
    pages = Client.quality.make(connection.client, model, window)  # type: ignore[arg-type]
    page = connection.client.run(pages.page(connection.client, after, limit))
    connection.show_list(page, quality_columns(page.items))


DRIFT_COLUMNS: output.Columns[tuple[str, ColumnDrift | PredictionDrift]] = {
    "column": lambda row: row[0],
    "type": lambda row: row[1].type,
    "psi": lambda row: f"{row[1].psi:.3f}",
    "p-value": lambda row: f"{row[1].p_value:.2g}",
    "missing": lambda row: f"{row[1].missing:.1%}",
    "unseen": lambda row: f"{row[1].unseen:.1%}",
    "drifted": lambda row: "drifted" if row[1].drifted else "too few rows" if row[1].too_few_rows else None,
}


def drift(connection: Connection, model: Name) -> None:
    """Compare recent examples with those of the last full training, column by column.

    Example: amend models drift churn
    """
    found = connection.client.drift(model)
    if connection.as_json:
        connection.show(connection.response)
        return
    output.note(f"{found.window.rows} recent rows compared with {found.reference.rows} rows of the last full training.")
    rows: list[tuple[str, ColumnDrift | PredictionDrift]] = [(column.name, column) for column in found.columns]
    if found.predictions:
        rows.insert(0, ("(predictions)", found.predictions))
    output.print_table(rows, DRIFT_COLUMNS)
    if found.omitted:
        output.note(f"{found.omitted} columns with a smaller PSI are not listed.")
    for segment in found.segments[:1]:
        figures = f"{segment.window_rows} recent rows, largest PSI {segment.psi:.3f} ({segment.worst})"
        output.note(f"The segment that changed most is {segment.column} = {segment.value}: {figures}.")
