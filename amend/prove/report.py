"""The report of ``amend prove``: what was compared, what was not and why, and the differences; as JSON and as text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from amend.prove.comparison import Comparison

GUARANTEE = "After an erasure, the stored bytes depend only on the retained examples and their ledger positions."
METHOD = (
    "Two services went through the same history. At the positions of erased examples, they stored different ids, "
    "subjects, inputs, targets, weights and splits. After the last erasure and some further work, everything that the "
    "services store and return was compared."
)
LIMITS = (
    "Number and positions of the erased examples, and the requests themselves, were the same.",
    "SQLite databases were compared row by row, not page by page.",
    "A version of a network that was adapted without a retrain depends on erased examples; the networks here have "
    "`erasure.retrain`.",
    "Copies outside the services (backups, downloads, exports) were not examined.",
)
MAX_SHOWN = 50


@dataclass(frozen=True)
class Report:
    """The result of a run."""

    version: str
    seed: int
    events: int
    requests: int
    erasures: int
    erased_names: int
    """Number of ids and subjects of erased examples that the files were searched for."""
    traces: list[str]
    """Files that contain one of them."""
    comparison: Comparison

    @property
    def passed(self) -> bool:
        return not self.comparison.differences and not self.traces

    def as_json(self) -> dict[str, Any]:
        found = self.comparison
        return {
            "guarantee": GUARANTEE,
            "passed": self.passed,
            "method": METHOD,
            "limits": list(LIMITS),
            "amend": self.version,
            "seed": self.seed,
            "events_per_model": self.events,
            "requests": self.requests,
            "erasures": self.erasures,
            "compared": dict(sorted(found.compared.items())),
            "exceptions": [{**asdict(exempt), **counts} for exempt, counts in found.exempt.items()],
            "searched": {"names": self.erased_names, "files_with_traces": self.traces},
            "differences": [asdict(difference) for difference in found.differences],
        }

    def as_text(self) -> str:
        found = self.comparison
        lines = [
            "Twin test",
            "",
            GUARANTEE,
            "",
            METHOD,
            "",
            f"Result: {'passed' if self.passed else 'FAILED'} (Amend {self.version}, seed {self.seed}, {self.requests} "
            f"requests, {self.erasures} erasures)",
            "",
            f"Compared: {sum(found.compared.values()):,} values",
            *(f"  {count:>9,}  {place}" for place, count in sorted(found.compared.items())),
            "",
            "Not compared",
            *(
                f"  {exempt.name}: {counts['values']:,} values, {counts['differed']:,} of which differ. {exempt.reason}"
                for exempt, counts in found.exempt.items()
            ),
            "",
            f"Searched all files for {self.erased_names} ids and subjects of erased examples: "
            + (f"found in {', '.join(self.traces)}" if self.traces else "none found"),
            "",
            f"Differences: {len(found.differences)}",
            *(f"  {d.place}: {d.first!r} / {d.second!r}" for d in found.differences[:MAX_SHOWN]),
            "",
            "Limits",
            *(f"  - {limit}" for limit in LIMITS),
        ]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write the report to two files; returns their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        files = folder / "twins.json", folder / "twins.txt"
        files[0].write_text(json.dumps(self.as_json(), indent=2, default=str) + "\n")
        files[1].write_text(self.as_text())
        return files
