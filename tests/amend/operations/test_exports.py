"""Exports: files that are whole or not there, and that can be added again."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from amend import Client, NotFound
from tests.amend.lossy import Lossy
from tests.amend.operations.data import columns
from tests.worker.deployment import Deployment

# What the database is makes no difference to a client.
pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def test_an_export_is_a_file_that_can_be_added_again(client: Client, deployment: Deployment, tmp_path: Path) -> None:
    name, copy = deployment.new_model(), deployment.new_model()
    client.add_examples(name, columns(25))
    file = tmp_path / "all.parquet"
    assert client.export_examples(name, file) == file.stat().st_size
    assert client.add_examples(copy, pa.parquet.read_table(file)).accepted == 25
    assert list(client.examples(copy)) == list(client.examples(name))
    out = io.BytesIO(b"before")
    out.seek(6)
    client.export_examples(name, out)
    assert pa.ipc.open_stream(out.getvalue()[6:]).read_all().equals(pa.parquet.read_table(file))
    with pytest.raises(ValueError, match="'arrow' or 'parquet'"):
        client.export_examples(name, tmp_path / "all.csv")
    with pytest.raises(NotFound):
        client.export_examples("nobody", tmp_path / "none.arrow")
    assert list(tmp_path.iterdir()) == [file]


def test_an_export_that_broke_off_begins_again(
    shaky: Client, client: Client, proxy: Lossy, deployment: Deployment, tmp_path: Path
) -> None:
    name = deployment.new_model()
    client.add_examples(name, columns(500))
    proxy.lose, proxy.cut = 1, 1
    shaky.export_examples(name, tmp_path / "all.parquet")
    assert pa.parquet.read_table(tmp_path / "all.parquet").num_rows == 500
