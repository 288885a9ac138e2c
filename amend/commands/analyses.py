"""``amend analyses``: ask what a change would do, before making it."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from amend.analysis_results import rows_of
from amend.client import Client
from amend.commands import output
from amend.commands.arguments import parse_json
from amend.commands.connection import After, Connection, Limit, command, fail, option
from amend.commands.models import Name
from amend.responses import Analysis

app = typer.Typer(help="Analyse a model without changing it.", no_args_is_help=True)

AnalysisId = Annotated[str, typer.Argument(metavar="ANALYSIS", help="Id of the analysis.")]
COLUMNS: output.Columns[Analysis] = {
    "id": lambda analysis: analysis.id,
    "kind": lambda analysis: analysis.kind,
    "position": lambda analysis: analysis.position,
    "version": lambda analysis: analysis.version,
    "job": lambda analysis: analysis.job,
    "created": lambda analysis: output.format_time(analysis.created_at),
}
METRICS = ("loss", "accuracy", "auc", "rmse")


@command(app)
def run(
    connection: Connection,
    model: Name,
    request: Annotated[
        str, typer.Argument(help="Kind of the analysis, or the request as JSON or a file with JSON; - for stdin.")
    ],
) -> None:
    """Analyse a model and print the result.

    Kinds: preview, leave_one_out, cross_validation, tuning, influence, labelling.

    Example: amend analyses run churn '{"kind": "influence", "by": "source"}'
    """
    body: dict[str, Any] = {"kind": request}
    if not request.replace("_", "").isalpha():
        body = parse_json(request, "The request")
    show_result(connection, connection.client.analyse(model, body))


@command(app)
def preview(
    connection: Connection,
    model: Name,
    source: Annotated[str | None, option("--remove-source", "Remove all examples of this source.")] = None,
    ids: Annotated[list[str] | None, option("--remove-id", "Remove the example with this id. Can be repeated.")] = None,
    subjects: Annotated[list[str] | None, option("--remove-subject", "Remove this person's examples.")] = None,
    change: Annotated[str | None, option("--change", "Change of the spec, as JSON or a file with JSON.")] = None,
) -> None:
    """Show what a change would do, without making it.

    Example: amend analyses preview churn --remove-source import-7
    """
    given = {"source": source, "ids": ids or None, "subjects": subjects or None}
    remove = {name: value for name, value in given.items() if value is not None} or None
    parsed = None if change is None else parse_json(change, "The change")
    found = connection.client.preview(model, remove=remove, change=parsed)
    if remove is not None and found.result is not None and not found.result["removed"]:
        if connection.as_json:
            output.print_json(connection.response)
        fail("No example matches, so nothing would be removed.")
    show_result(connection, found)


@command(app, "list")
def list_(
    connection: Connection,
    model: Name,
    kind: Annotated[str | None, option("--kind", "Only analyses of this kind.")] = None,
    limit: Limit = None,
    after: After = None,
) -> None:
    """List the analyses of a model, newest first.

    Example: amend analyses list churn --kind preview
    """
    connection.show_page(Client.analyses, COLUMNS, limit, after, model, kind=kind)


@command(app)
def show(connection: Connection, model: Name, analysis: AnalysisId) -> None:
    """Show an analysis with its result.

    Example: amend analyses show churn 4e1d7a90-8c35-4b62-a7f1-93d05c2be684
    """
    connection.client.analysis(model, analysis)
    connection.show(connection.response)


def value_of(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row.get(name)


def describe_preview(result: dict[str, Any]) -> str:
    """The extent of a previewed change, what the gate would say, and the bound of the version's distance.

    >>> describe_preview({"removed": 3, "added": 0, "unknown": ["zz"], "gate": {"passed": True}, "bound": 0.01})
    '3 removed, 0 added. Not found: zz. The gate would pass. Bound: 0.01.'
    """
    parts = [f"{result['removed']} removed, {result['added']} added."]
    if unknown := result["unknown"]:
        parts.append(f"Not found: {', '.join(unknown[:10])}{', ...' if len(unknown) > 10 else ''}.")
    verdict = {True: "pass", False: "fail"}.get(result["gate"].get("passed"), "not judge")
    parts.append(f"The gate would {verdict}.")
    if result["bound"] is not None:
        parts.append(f"Bound: {result['bound']:.3g}.")
    return " ".join(parts)


def show_result(connection: Connection, analysis: Analysis) -> None:
    """Print the rows and the main metrics of a result; everything as JSON with --json."""
    if connection.as_json:
        output.print_json(connection.response)
        return
    result = analysis.result or {}
    if "before" in result:
        before, after, difference = result["before"], result["after"], result["difference"]
        pairs = [(name, before[name], after.get(name)) for name in METRICS if name in before]
        columns: output.Columns[Any] = {
            "metric": lambda row: row[0],
            "before": lambda row: row[1],
            "after": lambda row: row[2],
            "difference": lambda row: difference.get(row[0]),
            "error": lambda row: difference.get(f"{row[0]}_se"),
        }
        output.print_table(pairs, columns)
        output.note(describe_preview(result))
    else:
        rows = rows_of(analysis)
        names = list(dict.fromkeys(name for row in rows for name in row))[:8]
        output.print_table(rows, {name: value_of(name) for name in names})
    for name in ("best", "suggested"):
        if name in result:
            output.note(f"{name}: {result[name]}")
    output.note(f"Version {analysis.version} at position {analysis.position}; analysis {analysis.id}.")
