"""State as bytes: what went in comes out, equal states give equal bytes, and other bytes are refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from core.kprior import AddData, Examples, MemoryPolicy, State, StateError, Training, adapt, train
from core.kprior.curvature import BACKENDS
from core.kprior.data.random_samples import draw_from
from core.kprior.state import align, read_envelope
from core.kprior.state.state import hash_contents
from tests.core.kprior.problems import FAMILIES, LINEAR, QUADRATIC, TENTH, examples_of, l2, spec_of, target_of

SHORT = Training(max_epochs=3, budget=500)
MLP = {"kind": "mlp", "hidden": [4]}


def trained(
    kind: str = "binary",
    architecture: dict[str, Any] = LINEAR,
    curvature: str | None = "auto",
    policy: MemoryPolicy = TENTH,
) -> tuple[State, Examples]:
    spec = spec_of(kind, 3, architecture)
    result = train(spec, examples_of(kind, 60, 3).chunks(25), training=SHORT, policy=policy, curvature=curvature)
    return result.state, result.memory


def table_state() -> tuple[State, Examples]:
    columns: list[dict[str, Any]] = [
        {"name": "age", "type": "number"},
        {"name": "city", "type": "category", "values": ["A", "B"]},
    ]
    generator = torch.Generator().manual_seed(0)
    x = torch.stack([40 + 9 * torch.randn(50, generator=generator), torch.arange(50) % 3.0], 1).double()
    data = Examples(torch.arange(50), x, (x[:, :1] > 40).double())
    spec = {"input": {"kind": "table", "columns": columns}, "target": target_of("binary")}
    result = train({**spec, "architecture": QUADRATIC, "regularizer": l2()}, [data], policy=TENTH)
    return result.state, result.memory


def assert_round_trip(state: State, memory: Examples) -> None:
    data = state.to_bytes()
    again = State.from_bytes(data)
    assert again.to_bytes() == data
    assert again.spec == state.spec
    assert again.count == state.count
    assert again.memory.generation == state.memory.generation
    for a, b in ((again.w, state.w), (again.gradient, state.gradient), (again.memory.soft, state.memory.soft)):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    assert torch.equal(again.predictor.outputs(again.w, memory.x), state.predictor.outputs(state.w, memory.x))
    # what comes next is the same from either
    new = [AddData([Examples(memory.key[:2] + 10_000, memory.x[:2], memory.y[:2])])]
    options = {"training": SHORT, "policy": TENTH, "draw": draw_from(memory)}
    after = [adapt(s, memory, new, **options).state.to_bytes() for s in (state, again)]
    assert after[0] == after[1]
    assert State.from_bytes(after[0]).memory.generation == state.memory.generation + 1


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("architecture", [LINEAR, QUADRATIC, MLP], ids=lambda a: f"{a['kind']}{a.get('degree', '')}")
def test_every_family_round_trips(kind: str, architecture: dict[str, Any]) -> None:
    assert_round_trip(*trained(kind, architecture))


@pytest.mark.parametrize(
    ("curvature", "architecture"),
    [(c, a) for c in [*BACKENDS, None] for a in (LINEAR, MLP) if c != "blocks" or a is LINEAR],
)
def test_every_curvature_round_trips(curvature: str | None, architecture: dict[str, Any]) -> None:
    state, memory = trained("classes", architecture, curvature)
    assert (None if state.curvature is None else state.curvature.kind) == curvature
    assert_round_trip(state, memory)


def test_encoder_buffers_round_trip() -> None:
    state, memory = table_state()
    assert float(state.predictor.encoder.state_dict()["mean"][0]) == pytest.approx(40, abs=4)
    assert_round_trip(state, memory)


def test_header_can_be_read_alone_and_holds_plain_json() -> None:
    state, _ = trained("classes")
    header = read_envelope(state.to_bytes())["header"]
    assert header.items() >= json.loads(json.dumps(state.header())).items()
    assert header["format"] == "amend.state"
    assert header["spec"]["target"] == target_of("classes")
    assert header["count"] == 60


def assert_refused(data: bytes) -> None:
    with pytest.raises(StateError) as caught:
        State.from_bytes(data)
    message = str(caught.value)
    assert len(message) > 10
    assert "Traceback" not in message


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999])
def test_truncated_bytes_are_refused(share: float) -> None:
    data = trained()[0].to_bytes()
    assert_refused(data[: int(share * len(data))])


@pytest.mark.parametrize("cut", [1, 4, 7, 8, 9, 16])
def test_bytes_cut_near_an_end_are_refused(cut: int) -> None:
    data = trained()[0].to_bytes()
    assert_refused(data[:cut])
    assert_refused(data[:-cut])
    assert_refused(data[cut:])
    assert_refused(data + b"\0" * cut)


def test_flipped_bits_of_the_header_are_refused() -> None:
    """Each byte in turn: whether a name, a bracket or a digit was hit, it must not pass for a state."""
    data = trained()[0].to_bytes()
    size = int.from_bytes(data[:8], "little")
    passed = []
    for position in range(8 + size):
        flipped = bytearray(data)
        flipped[position] ^= 1
        if flipped == data:
            continue
        try:
            State.from_bytes(bytes(flipped))
        except StateError:
            continue
        passed.append(bytes(flipped[max(8, position - 8) : position + 8]))
    assert not passed


@pytest.mark.parametrize("share", [0.05, 0.35, 0.65, 0.95])
def test_flipped_bits_of_the_tensors_are_refused(share: float) -> None:
    data = bytearray(trained()[0].to_bytes())
    size = int.from_bytes(data[:8], "little")
    data[8 + size + int(share * (len(data) - 8 - size))] ^= 1
    assert_refused(bytes(data))


def sealed(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bytes:
    """A file whose digest is right, whatever its content."""
    envelope = {"header": header, "sha256": hash_contents(header, tensors)}
    return bytes(save(tensors, metadata={"amend": json.dumps(envelope)}))


def with_header(state: State, change: dict[str, Any]) -> bytes:
    """The same tensors behind another header."""
    return sealed({**state.header(), **change}, load(state.to_bytes()))


def test_a_file_with_second_moments_of_the_inputs_can_still_be_read() -> None:
    state, memory = trained("classes", QUADRATIC)
    tensors = load(state.to_bytes())
    assert "surrogate.moment" not in tensors
    tensors["surrogate.moment"] = tensors["surrogate.gram"].clone()
    again = State.from_bytes(sealed(state.header(), tensors))
    assert again.to_bytes() == state.to_bytes()
    assert_round_trip(again, memory)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"version": "1"},
        {"format": "other.state"},
        {"spec": None},
        {"spec": "linear"},
        {"spec": {}},
        {"spec": {"input": 5, "target": 5, "architecture": 5, "regularizer": 5}},
        {"curvature": "unheard-of"},
        {"curvature": "blocks"},
        {"curvature": 7},
        {"count": "many"},
        {"count": None},
        {"generation": None},
    ],
    ids=str,
)
def test_inconsistent_headers_are_refused(change: dict[str, Any]) -> None:
    state, _ = trained()
    assert_refused(with_header(state, change))


def test_other_model_with_these_tensors_is_refused() -> None:
    state, _ = trained()
    for other in (spec_of("binary", 4), spec_of("classes", 3), spec_of("binary", 3, QUADRATIC)):
        assert_refused(with_header(state, {"spec": other}))


@pytest.mark.parametrize(
    "name",
    [
        "w",
        "anchor.gradient",
        "anchor.figures",
        "delta",
        "memory.key",
        "memory.weight",
        "memory.soft",
        "anchor.curvature.matrix",
    ],
)
@pytest.mark.parametrize("damage", ["missing", "short"])
def test_missing_or_misshapen_tensors_are_refused(name: str, damage: str) -> None:
    state, _ = trained()
    tensors = load(state.to_bytes())
    whole = tensors.pop(name)
    if damage == "short":
        tensors[name] = whole[:-1].clone()
    assert_refused(sealed(state.header(), tensors))


def test_soft_labels_of_another_width_are_refused() -> None:
    state, _ = trained()
    tensors = load(state.to_bytes())
    tensors["memory.soft"] = tensors["memory.soft"].repeat(1, 2)
    assert_refused(sealed(state.header(), tensors))


def tree_state() -> tuple[State, Examples]:
    """A head of 1 241 weights, few pairs of which share an example."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator)
    data = Examples(torch.arange(400), x, (x[:, :1] * x[:, 1:2] > 0).double())
    trees = {"kind": "trees", "trees": 40, "leaves": 31, "min_examples": 2}
    result = train({**spec_of("binary", 3), "architecture": trees}, [data], policy=TENTH)
    return result.state, result.memory


def test_the_curvature_of_a_large_head_is_packed() -> None:
    state, memory = tree_state()
    assert_round_trip(state, memory)
    again = State.from_bytes(state.to_bytes())
    assert state.curvature is not None
    assert again.curvature is not None
    assert torch.equal(again.curvature.dense(state.predictor.size), state.curvature.dense(state.predictor.size))
    assert len(state.to_bytes()) < 4 * state.predictor.size**2  # half of what all pairs of weights take


@pytest.mark.parametrize("name", ["anchor.curvature.matrix.values", "anchor.curvature.matrix.used"])
@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_misshapen_packed_curvature_is_refused(name: str, damage: str) -> None:
    state, _ = tree_state()
    data = state.to_bytes()
    tensors, header = load(data), read_envelope(data)["header"]
    whole = tensors.pop(name)
    if damage == "short":
        tensors[name] = whole[:-1].clone()
    assert_refused(sealed(header, tensors))


def nested(depth: int) -> bytes:
    text = b"[" * depth + b"]" * depth
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 64,
        b"not a safetensors file at all",
        save({"weight": torch.zeros(3)}),
        save({"weight": torch.zeros(3)}, metadata={"format": "pt"}),
        save({"weight": torch.zeros(3)}, metadata={"amend": "{"}),
        save({"weight": torch.zeros(3)}, metadata={"amend": "[]"}),
        save({"weight": torch.zeros(3)}, metadata={"amend": "{}"}),
        (19).to_bytes(8, "little") + b'{"__metadata__": 5}',
        nested(100_000),
    ],
    ids=range(11),
)
def test_foreign_files_are_refused(data: bytes) -> None:
    assert_refused(data)


def test_memory_rows_are_put_in_order_and_checked() -> None:
    state, memory = trained("classes", policy=MemoryPolicy(fraction=0.3))
    shuffled = memory.take(torch.randperm(len(memory), generator=torch.Generator().manual_seed(0)))
    assert torch.equal(align(state, shuffled).key, state.memory.key)
    with pytest.raises(ValueError, match="missing"):
        align(state, memory.take(torch.arange(1, len(memory))))
    with pytest.raises(ValueError, match="soft labels differ"):
        align(state, Examples(memory.key, memory.x.flip(0), memory.y))
