"""Exports: all examples of a model as a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Literal
from uuid import uuid4

from amend.sansio import Call, Caller, Download, Flow, operation, path

Format = Literal["arrow", "parquet"]
SUFFIXES: dict[str, Format] = {".parquet": "parquet", ".arrow": "arrow", ".arrows": "arrow"}


class Exports(Caller):
    """Of any size: they are written as they come."""

    @operation
    def export_examples(self, model: str, to: str | Path | BinaryIO, *, format: Format | None = None) -> Flow[int]:
        """Write all examples in force to a file, which is named or open for writing bytes; how many bytes it has.

        The format is that of the file's name, unless it is given: Parquet, or an Arrow stream. The file has the columns
        that ``add_examples`` takes, and never the subjects. A file that is named is there once it is whole.
        """
        if not isinstance(to, str | Path):
            return (yield from self.download(model, to, format or "arrow"))
        form = format or SUFFIXES.get(Path(to).suffix.lower())
        if form is None:
            raise ValueError(f"cannot tell the format by the name {to}: give 'arrow' or 'parquet'")
        part = Path(f"{to}.{uuid4().hex[:8]}.part")
        try:
            with part.open("wb") as file:
                size = yield from self.download(model, file, form)
            os.replace(part, to)
        finally:
            part.unlink(missing_ok=True)
        return size

    def download(self, model: str, file: BinaryIO, form: Format) -> Flow[int]:
        download = Download(file)
        place = path("models", model, "examples", "export")
        yield from self.send(Call("GET", place, {"format": form}, headers={"Accept": "*/*"}, download=download))
        return download.size
