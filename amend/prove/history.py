"""A random history of requests, with other content at the erased positions for each twin.

The seed determines everything that both twins have in common: which requests are made, in which order, and the examples
that are retained. The twin's name determines the content of examples that are erased before the end: their ids, their
subjects, inputs, targets, weights and splits. Their number and their positions are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

Json = dict[str, Any]

MANUAL = {"adapt": {"after_changes": None, "every": None}, "retrain": {"every": None}}
"""Jobs are requested: a schedule would depend on the time of day."""
FIRST_ROWS, BATCH_ROWS, POISONED_ROWS = 300, 40, 450
CLASSES = 12
WIDE = 90
"""With 12 classes, a vector of this length has more than the 1 000 weights of a dense model."""
SCALE = {"kind": "scale", "mean": [0.1] * 6, "scale": [1.5] * 6}
STEPS = {"steps": [SCALE], "features": [f"scaled {i}" for i in range(6)], "trained_on": "other"}
"""The steps of an imported pipeline."""
WORDS = ("late", "broken", "friendly", "cheap", "slow", "lovely")
"""Words of texts; the target depends on which of them occur."""


@dataclass(frozen=True)
class Step:
    """A request, and what to wait for afterwards."""

    method: str
    path: str
    body: Json | None = None
    erasure: bool = False
    """Whether the response is an erasure whose receipt must be waited for."""
    statuses: tuple[int, ...] = (200, 201, 202, 204)


@dataclass
class Subject:
    """A person, and whether the person's examples are erased before the end."""

    name: str
    erased: bool
    ids: list[str] = field(default_factory=list)
    quarantined: bool = False
    """Whether the examples may be in quarantine, so that they can be neither corrected nor removed."""


class ModelHistory:
    """The examples of one model: what they look like, and who is in them."""

    def __init__(self, name: str, spec: Json, kept: Random, erased: Random, twin: str) -> None:
        self.name, self.spec, self.kept, self.erased, self.twin = name, spec, kept, erased, twin
        self.rule = [kept.gauss(0, 0.5) for _ in range(WIDE)]
        self.classes = [[kept.gauss(0, 1.0) for _ in range(WIDE)] for _ in range(CLASSES)]
        self.people: list[Subject] = []
        self.waiting: list[tuple[str, Json]] = []
        """Ids of examples without a label, and their bodies with one."""
        self.extra_column = False
        self.count = 0

    @property
    def path(self) -> str:
        return f"/v1/models/{self.name}"

    @property
    def in_force(self) -> list[Subject]:
        return [person for person in self.people if not person.quarantined]

    def create(self) -> Step:
        return Step("POST", "/v1/models", {"name": self.name, **self.spec})

    def inputs(self, random: Random) -> tuple[Any, list[float]]:
        """An input, and the numbers that its target depends on."""
        kind = self.spec["input"]["kind"]
        numbers = [random.gauss(0, 1) for _ in range(self.spec["input"].get("dim", 3))]
        if kind == "vector":
            return [round(v, 4) for v in numbers], numbers
        if kind == "text":
            numbers = [random.gauss(0, 1) for _ in WORDS]
            used = [word for word, number in zip(WORDS, numbers, strict=True) if number > 0]
            return " ".join([*used, f"order {random.randrange(10**6)}"]), numbers
        row: Json = {"age": round(40 + 12 * numbers[0], 1), "plan": random.choice(("free", "paid", "trial"))}
        row["member"] = random.random() < 0.5
        if random.random() < 0.05:
            row["age"] = None
        if random.random() < 0.05:  # a value that the column does not have, of which the text is stored
            row["plan"] = f"{self.twin if random is self.erased else self.name}-plan-{random.getrandbits(40):x}"
        if self.extra_column:
            row["income"] = round(numbers[1], 3)
        return row, numbers

    def target(self, random: Random, numbers: list[float], flip: bool) -> Any:
        score = sum(a * b for a, b in zip(self.rule, numbers, strict=False))
        kind = self.spec["target"]["kind"]
        if kind == "binary":
            return int((random.random() < 1 / (1 + math.exp(-3 * score))) != flip)
        if kind == "classes":
            scores = [sum(a * b for a, b in zip(row, numbers, strict=False)) for row in self.classes]
            return scores.index(max(scores))
        if kind == "labels":
            sums = [sum(a * b for a, b in zip(row, numbers, strict=False)) for row in self.classes]
            return [label for label, one in enumerate(sums[: len(self.spec["target"]["values"])]) if (one > 0) != flip]
        if kind == "count":
            return min(9, int(math.exp(max(-3.0, min(2.0, score))) + random.random()))
        return round((-4 * score if flip else score) + random.gauss(0, 0.3), 4)

    def example(self, person: Subject, flip: bool = False) -> Json:
        """An example of a person, drawn by the generator of the erased or of the retained content."""
        random, self.count = (self.erased if person.erased else self.kept), self.count + 1
        x, numbers = self.inputs(random)
        id_ = f"{self.name}-{self.count}"
        if person.erased:
            id_ = f"{self.twin}-{random.getrandbits(40):x}-{self.count}"
        found: Json = {"id": id_, "subject": person.name, "x": x, "y": self.target(random, numbers, flip)}
        found["split"] = "holdout" if random.random() < 0.25 else "train"
        if random.random() < 0.1:
            found["weight"] = random.choice((0.5, 2.0, 3.0))
        found["time"] = f"2026-01-{1 + self.count // 300:02d}T12:00:00Z"
        person.ids.append(id_)
        return found

    def new_people(self, count: int, erased: int) -> list[Subject]:
        made = [Subject(f"{self.name}-person-{len(self.people) + i}", False) for i in range(count)]
        made += [
            Subject(f"{self.twin}-{self.erased.getrandbits(40):x}-{len(self.people) + count + i}", True)
            for i in range(erased)
        ]
        self.people += made
        return made

    def batch(self, rows: int, people: list[Subject], flip: bool = False) -> Json:
        """Examples of people in turn, so that the positions of the erased ones are the same for both twins."""
        return {"examples": [self.example(people[i % len(people)], flip) for i in range(rows)]}

    def add(self, rows: int, kept: int, erased: int, flip: bool = False) -> Step:
        return Step("POST", f"{self.path}/examples", self.batch(rows, self.new_people(kept, erased), flip))

    def adapt(self) -> Step:
        return Step("POST", f"{self.path}/adaptations")

    def retrain(self) -> Step:
        return Step("POST", f"{self.path}/retrains")

    # What can happen to a model

    def add_and_adapt(self) -> Iterator[Step]:
        yield self.add(BATCH_ROWS, 9, 1)
        yield self.adapt()

    def remove(self) -> Iterator[Step]:
        ids = [id_ for person in self.kept.sample(self.in_force, 3) for id_ in person.ids[:1]]
        yield Step("POST", f"{self.path}/removals", {"ids": ids})
        for person in self.people:
            person.ids = [id_ for id_ in person.ids if id_ not in ids]

    def correct(self) -> Iterator[Step]:
        """Corrections of a retained example and of one that is erased later, if there is one."""
        candidates = [p for p in self.in_force if p.ids]
        chosen = [self.kept.choice([p for p in candidates if not p.erased])]
        chosen += [p for p in candidates if p.erased][:1]
        for person in chosen:
            body = self.example(person)
            person.ids.pop()
            for name in ("id", "split"):
                del body[name]
            yield Step("PUT", f"{self.path}/examples/{person.ids[0]}", body)
        yield self.adapt()

    def label_late(self) -> Iterator[Step]:
        """Examples without a label; the label arrives later, except for one example of each kind."""
        people = self.new_people(3, 1)
        bodies = self.batch(8, people)["examples"]
        yield Step("POST", f"{self.path}/examples", {"examples": [{**body, "y": None} for body in bodies]})
        late = [{"id": body["id"], "y": body["y"]} for body in bodies[:-4]]
        yield Step("POST", f"{self.path}/labels", {"labels": late})
        yield self.adapt()

    def analyse(self) -> Iterator[Step]:
        """An analysis whose stored result names examples and depends on all of them."""
        yield Step("POST", f"{self.path}/analyses", {"kind": "leave_one_out", "top": 20})

    def change_regularizer(self) -> Iterator[Step]:
        delta = round(self.kept.uniform(0.5, 5.0), 2)
        yield Step("POST", f"{self.path}/changes", {"regularizer": {"kind": "l2", "delta": delta}})

    def change_columns(self) -> Iterator[Step]:
        self.extra_column = not self.extra_column
        column = {"name": "income", "type": "number", "default": 0.0}
        yield Step(
            "POST",
            f"{self.path}/changes",
            {"add_columns": [column]} if self.extra_column else {"drop_columns": ["income"]},
        )

    def poison(self) -> Iterator[Step]:
        """A batch with wrong targets, which the gate rejects; the examples of a person in it are erased later.

        It is so large that the gate rejects it whatever else the person's examples contain: quarantined examples get
        new positions, which must be the same for both twins.
        """
        people = self.new_people(14, 1)
        for person in people:
            person.quarantined = True
        yield Step("POST", f"{self.path}/examples", self.batch(POISONED_ROWS, people, flip=True))
        yield self.adapt()

    def erase(self) -> Iterator[Step]:
        for person in [p for p in self.people if p.erased and p.ids][:1]:
            person.ids = []
            yield Step("POST", "/v1/erasures", {"subject": person.name}, erasure=True)

    def erase_all(self) -> Iterator[Step]:
        for person in [p for p in self.people if p.erased and p.ids]:
            person.ids = []
            yield Step("POST", "/v1/erasures", {"subject": person.name}, erasure=True)

    def predict(self) -> Iterator[Step]:
        inputs = [self.inputs(self.kept)[0] for _ in range(5)]
        yield Step("POST", f"{self.path}/predictions", {"inputs": inputs})


def specs() -> dict[str, Json]:
    """The models: one for each way in which Amend makes a version."""
    columns = [
        {"name": "age", "type": "number"},
        {"name": "plan", "type": "category", "values": ["free", "paid", "trial"]},
        {"name": "member", "type": "boolean"},
    ]
    vector = {"kind": "vector", "dim": 6}
    network = {"erasure": {"retrain": True}}
    return {
        "logistic": {"input": {"kind": "table", "columns": columns}, "target": {"kind": "binary"}, "policy": MANUAL},
        "wide": {
            "input": {"kind": "vector", "dim": WIDE},
            "target": {"kind": "classes", "values": list(range(CLASSES))},
            "policy": MANUAL,
        },
        "labels": {"input": vector, "target": {"kind": "labels", "values": [0, 1, 2]}, "policy": MANUAL},
        "gaussian": {"input": vector, "target": {"kind": "number"}, "policy": MANUAL},
        "counts": {"input": vector, "target": {"kind": "count"}, "policy": MANUAL},
        "network": {
            "input": vector,
            "target": {"kind": "binary"},
            "architecture": {"kind": "mlp", "hidden": [12]},
            "policy": MANUAL | network,
        },
        "texts": {
            "input": {"kind": "text"},
            "target": {"kind": "binary"},
            "architecture": {"kind": "linear", "encoder": {"kind": "hashing", "features": 64}},
            "policy": MANUAL,
        },
        "trees": {
            "input": vector,
            "target": {"kind": "binary"},
            "architecture": {"kind": "trees", "trees": 10, "leaves": 6},
            "policy": MANUAL,
        },
        "kernel": {
            "input": vector,
            "target": {"kind": "binary"},
            "architecture": {"kind": "kernel", "kernel": "rbf", "features": 32, "lengthscale": 2.0},
            "policy": MANUAL,
        },
        "steps": {
            "input": {**vector, "transform": STEPS},
            "target": {"kind": "number"},
            "policy": MANUAL,
        },
    }


EVERYWHERE = ("add_and_adapt", "remove", "correct", "label_late", "change_regularizer", "erase", "predict")
ALSO = {
    "logistic": ("change_columns", "poison", "analyse"),
    "gaussian": ("poison", "analyse"),
    "texts": ("analyse",),
    "steps": ("analyse",),
}


def history(seed: int, twin: str, events: int, models: tuple[str, ...] = ()) -> Iterator[Step]:
    """The requests of a twin: so many random events for each model, then all erasures, then ordinary work."""
    kept, erased = Random(f"retained {seed}"), Random(f"erased {seed} {twin}")
    chosen = {name: spec for name, spec in specs().items() if not models or name in models}
    made = [ModelHistory(name, spec, kept, erased, twin) for name, spec in chosen.items()]
    for model in made:
        yield model.create()
        yield model.add(FIRST_ROWS, 27, 3)
        yield model.adapt()
    for model in made:
        todo = [*EVERYWHERE, *ALSO.get(model.name, ())]
        drawn = [kept.choice(EVERYWHERE) for _ in range(max(0, events - len(todo)))]
        order = kept.sample(todo + drawn, min(events, len(todo) + len(drawn)))
        for event in order:
            yield from getattr(model, event)()
        yield model.retrain()
    for model in made:
        yield from model.erase_all()
    for model in made:
        yield from model.predict()
        yield model.add(BATCH_ROWS, 10, 0)
        yield model.adapt()
        yield model.retrain()
