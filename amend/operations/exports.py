"""Export of all examples of a model to a file, of any size: the response is written as it arrives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Literal
from uuid import uuid4

from amend.client_methods import operation
from amend.requests import Call, Caller, Download, Flow, path

Format = Literal["arrow", "parquet"]
SUFFIXES: dict[str, Format] = {".parquet": "parquet", ".arrow": "arrow", ".arrows": "arrow"}


class Exports(Caller):
    @operation
    def export_examples(self, model: str, to: str | Path | BinaryIO, *, format: Format | None = None) -> Flow[int]:
        """Write all active examples to a file, and return its size in bytes. ``to`` is a path or an open binary file.

        The format, Parquet or an Arrow stream, follows from the suffix unless it is given. The file has the columns
        that ``add_examples`` reads; subjects are not exported. A path appears only once the file is complete.
        """
        if not isinstance(to, str | Path):
            return (yield from self.download(model, to, format or "arrow"))
        form = format or SUFFIXES.get(Path(to).suffix.lower())
        if form is None:
            raise ValueError(f"Cannot infer the format from the name {to}. Pass format='arrow' or 'parquet'.")
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
