"""Encoders from installed packages, by the example package for sentence-transformer models and a tiny model."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from core.database import Database
from core.encoders import plugins
from core.errors import Unavailable
from core.keys import api_keys
from core.settings import Settings
from core.tables.jobs import JobKind
from core.tables.keys import Scope
from migrations import runner
from service.app import build
from service.http.middleware import RequestLog
from tests.core.encoders import model, tensor
from tests.core.tracking.tracked_model import TrackedModel
from tests.worker.texts import OTHERS, WORDS, reviews

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentence-encoder"
DIM = 6


def write_model(folder: Path, seed: int = 0) -> None:
    """A sentence-transformer model in small: a tokenizer, and token embeddings."""
    vocabulary = ["[PAD]", "[UNK]", *OTHERS, *WORDS[0], *WORDS[1]]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    table = np.random.default_rng(seed).normal(size=(len(vocabulary), DIM)).astype(np.float32)
    given = [tensor(name, TensorProto.INT64, [None, None]) for name in ("input_ids", "attention_mask")]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])]
    made = [tensor("last_hidden_state", TensorProto.FLOAT, [None, None, DIM])]
    content = model(nodes, given, made, [numpy_helper.from_array(table, "table")])
    (folder / "model.onnx").write_bytes(content)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example package, installed, with a tiny model; returns the folder of the model."""
    site, folder = tmp_path / "site", tmp_path / "model"
    about = site / "amend_sentence_encoder-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(EXAMPLE / "amend_sentence_encoder.py", site)
    (about / "METADATA").write_text("Name: amend-sentence-encoder\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[amend.encoders]\nsentence = amend_sentence_encoder:SentenceEncoder\n")
    write_model(folder)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("SENTENCE_MODEL", str(folder))
    plugins.load_plugin.cache_clear()
    return folder


def test_an_encoder_that_cannot_be_loaded_is_named_with_the_cause(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SENTENCE_MODEL")
    with pytest.raises(Unavailable, match=r"'sentence' of amend-sentence-encoder==1.0.*SENTENCE_MODEL") as failed:
        plugins.load_plugin("sentence")
    assert failed.value.code == "encoder_failed"
    monkeypatch.setenv("SENTENCE_MODEL", str(installed))
    assert plugins.load_plugin("sentence").features == DIM


def test_a_sentence_encoder_from_a_package_trains_a_model_and_is_recognised_when_it_changes(
    installed: Path, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path / "home")
    database = Database(settings)
    runner.upgrade(database)
    with database.write() as session:
        headers = {"Authorization": "Bearer " + api_keys.issue(session, "tests", [Scope.ADMIN], None)[1]}
    app = build(settings)
    transport = httpx.ASGITransport(RequestLog(app))  # type: ignore[arg-type]

    async def use() -> None:
        client = httpx.AsyncClient(transport=transport, base_url="http://amend", headers=headers)
        async with app.router.lifespan_context(app), client as api:
            await check(api, TrackedModel(database, settings, "tickets"), installed)

    asyncio.run(use())
    plugins.load_plugin.cache_clear()


async def check(api: httpx.AsyncClient, tracked: TrackedModel, folder: Path) -> None:
    encoder: dict[str, Any] = {"kind": "plugin", "name": "sentence"}
    spec = {"name": "tickets", "input": {"kind": "text"}, "target": {"kind": "binary"}}
    made = await api.post("/v1/models", json={**spec, "architecture": {"kind": "linear", "encoder": encoder}})
    described = made.raise_for_status().json()["architecture"]["encoder"]
    assert described["features"] == DIM
    assert described["digest"].startswith("sha256:")
    texts, labels = reviews(200)
    rows = [{"id": f"e{i}", "x": texts[i], "y": labels[i], "split": "train"} for i in range(len(texts))]
    (await api.post("/v1/models/tickets/examples", json={"examples": rows})).raise_for_status()
    await asyncio.to_thread(tracked.job, JobKind.ADAPT)
    asked = ["quick and friendly driver", "broken and late", ""]
    predicted = (await api.post("/v1/models/tickets/predictions", json={"inputs": asked})).raise_for_status().json()
    assert [output["class"] for output in predicted["outputs"][:2]] == [1, 0]
    found = plugins.load_plugin("sentence").encode(asked)
    assert found.shape == (3, DIM)
    np.testing.assert_allclose(np.linalg.norm(found[:2], axis=1), 1, atol=1e-6)
    # other files under the same name are another encoder
    write_model(folder, seed=1)
    plugins.load_plugin.cache_clear()
    await api.post("/v1/models/tickets/examples", json={"examples": [{"id": "new", "x": "late", "y": 0}]})
    job = await asyncio.to_thread(tracked.job, JobKind.ADAPT)
    failed = (await api.get(f"/v1/jobs/{job}")).json()
    assert (failed["state"], failed["error"]["code"]) == ("failed", "encoder_changed")
