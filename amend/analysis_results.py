"""Results of analyses as frames and charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amend.responses import Analysis

ROWS = ("table", "folds", "rows", "predictions")
"""Names of the list in a result, by kind."""


def rows_of(analysis: Analysis) -> list[dict[str, Any]]:
    """The rows of a result: the table of a tuning, folds, rows, or the predictions of a preview."""
    if analysis.result is None:
        raise ValueError(f"The analysis {analysis.id} has not finished; wait for the job {analysis.job}.")
    found: list[dict[str, Any]] = next((analysis.result[name] for name in ROWS if name in analysis.result), [])
    return found


def to_pandas(analysis: Analysis) -> Any:
    import pandas as pd

    return pd.DataFrame(rows_of(analysis))


def plot(analysis: Analysis, ax: Any = None) -> Any:
    """Draw a tuning as a curve with error bars, influence as bars with intervals, and other kinds as bars."""
    import matplotlib.pyplot as plt

    rows = rows_of(analysis)
    ax = plt.subplots()[1] if ax is None else ax
    result = analysis.result or {}
    match analysis.kind:
        case "tuning":
            values, metric = [row["value"] for row in rows], result["metric"]
            errors = [row["fold_se" if metric == "loss" else f"{metric}_se"] for row in rows]
            ax.errorbar(values, [row[metric] for row in rows], yerr=errors, marker="o")
            ax.axvline(result["suggested"], linestyle="--", color="grey")
            if min(values) > 0:
                ax.set_xscale("log")
            ax.set_xlabel(result["parameter"])
            ax.set_ylabel(f"cross-validated {metric}")
        case "influence":
            names = [str(row.get("source") or row.get("id") or row.get("subject")) for row in rows]
            errors = [1.96 * (row.get("effect_se") or 0.0) for row in rows]
            ax.barh(names[::-1], [row["effect"] for row in rows][::-1], xerr=errors[::-1])
            ax.set_xlabel("change of the holdout loss without it")
        case "preview":
            ax.scatter([row["before"] for row in rows], [row["after"] for row in rows])
            ax.axline((0, 0), slope=1, linestyle="--", color="grey")
            ax.set_xlabel("prediction before")
            ax.set_ylabel("prediction after")
        case "cross_validation":
            ax.bar([row["fold"] for row in rows], [row["loss"] for row in rows])
            ax.set_xlabel("fold")
            ax.set_ylabel("loss")
        case _:
            name = "suspicion" if analysis.kind == "leave_one_out" else "gain"
            ax.plot(range(1, len(rows) + 1), [row[name] for row in rows], marker=".")
            ax.set_xlabel("rank")
            ax.set_ylabel(name)
    return ax
