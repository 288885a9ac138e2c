"""Predictions for frames and tables of many rows, with the same results in every form."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from amend import Client, NotFound, cli
from tests.amend.estimators.shop import orders
from tests.amend.operations.data import QUIET
from tests.worker.deployment import Deployment

pytestmark = pytest.mark.parametrize("deployment", ["sqlite"], indirect=True)


def test_the_frame_of_the_examples_is_predicted_row_by_row_in_bulk_and_by_the_command(
    client: Client, deployment: Deployment, tmp_path: Path
) -> None:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    rows = orders(120, gaps=True).drop(columns=["cost", "calls"])
    rows = rows.assign(id=[f"o{i}" for i in range(120)], returned=np.where(rows.returned == 1, "Yes", "no"))
    client.create_model(name, rows, "returned", target_kind="binary", id="id", policy=QUIET)
    client.add_examples(name, rows, target="returned")
    client.wait(client.adapt(name))
    one_by_one = client.predict(name, rows)
    table = client.predict_table(name, rows)
    np.testing.assert_allclose(table.to_numpy(), one_by_one.to_numpy(), rtol=1e-12)
    assert table.to_pandas().id.tolist() == rows.id.tolist()
    assert (len(table), table.version) == (120, 1)
    truth = (rows.returned == "Yes").to_numpy()
    assert one_by_one.to_numpy()[truth].mean() > one_by_one.to_numpy()[~truth].mean() + 0.05  # Yes is 1

    file = tmp_path / "orders.csv"
    rows.to_csv(file, index=False)
    given = ["--url", deployment.url, "--key", deployment.admin_key]
    shown = CliRunner().invoke(cli.app, ["predict", name, str(file), *given])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[1].split()[:2] == ["1", "o0"]
    broken = CliRunner().invoke(cli.app, ["predict", name, str(short(file)), *given])
    assert broken.exit_code == 1
    assert "The frame lacks 'price'" in broken.stderr


def short(file: Path) -> Path:
    """A file without the column `price`."""
    cut = file.with_name("short.csv")
    cut.write_text("size,visits,colour,depot\n1,2,red,north\n")
    return cut


def test_an_unknown_model_is_corrected(client: Client) -> None:
    name = f"parcels-{uuid.uuid4().hex[:8]}"
    client.create_model(name, {"kind": "vector", "dim": 1}, {"kind": "binary"}, policy=QUIET)
    with pytest.raises(NotFound, match=f"Did you mean '{name}'"):
        client.model(name.replace("parcels", "parcel"))
