"""Histories: what callers, operators and accidents do, and when. A seed gives a list of actions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

MODELS = ("alpha", "beta")
PEOPLE = ("ann", "bob", "eve")
SECONDS = 50.0
"""Over which the actions are spread."""
GROUPS = ("worker-1", "worker-2", "scheduler", "outbox", "webhooks", "api-1", "api-2")
SCENARIOS = {"restore": 2, "quarantine": 2, "labels": 2, "overtaking": 2, "": 3}
"""Requests that would rarely meet by chance (`scenario`), and how frequent each of these groups is."""
SECOND_SCENARIO_RATE = 0.1
"""Share of histories with two of them."""
SERVICES = ("database", "store", "broker", "messages", "mlflow", "receiver")


@dataclass(frozen=True)
class Action:
    """Something that happens at a time. `actor` is a caller, or "operator" for accidents and maintenance."""

    at: float
    actor: str
    kind: str
    choice: int = 0
    """A number that chooses among what there is at that time."""
    value: str = ""
    size: int = 1

    def __str__(self) -> str:
        details = " ".join(text for text in (self.value, f"size={self.size}" if self.size != 1 else "") if text)
        return f"{self.at:7.2f} s  {self.actor:<9} {self.kind} {details}".rstrip() + f" (choice {self.choice})"


REQUESTS = {
    "add": 25,
    "add_bad": 4,
    "add_pending": 8,
    "label": 8,
    "choose": 3,
    "resend": 2,
    "remove": 8,
    "correct": 5,
    "erase": 10,
    "erase_held": 3,
    "approve": 3,
    "refuse": 3,
    "extend": 2,
    "adapt": 4,
    "retrain": 5,
    "promote": 4,
    "resume": 4,
    "accept": 2,
    "discard": 2,
    "cancel": 2,
}
"""Requests of callers, and how frequent each is."""
ACCIDENTS = {"kill": 8, "kill_at": 8, "stall": 8, "outage": 6, "machine_crash": 2}
KILL_POINTS = (
    "mlflow",
    "file delete",
    "file list",
    "file write",
    "file half written",
    "file written",
    "file renamed",
    "file sync",
    "broker",
    "webhook",
    "commit",
)
"""Beginnings of the names of points at which processes are killed."""


QUARANTINE_REQUESTS = ("accept", "accept", "discard", "remove_bad", "erase", "add", "add_bad", "retrain", "resend")
RESTORE_REQUESTS = ("remove", "correct", "erase_held", "approve", "refuse", "extend", "erase")
LABEL_REQUESTS = ("label", "label", "label", "choose", "choose", "adapt", "erase", "erase_held", "remove_pending")
SIZED = ("add", "add_bad", "add_pending", "label", "remove", "remove_pending")


def generate(seed: int | str) -> list[Action]:
    """The actions of a history."""
    random = Random(f"actions {seed}")
    actions = [
        Action(0.1, "api-1", "add", 0, MODELS[0], size=8),
        Action(0.2, "api-1", "add", 12, MODELS[0], size=4),
        Action(0.4, "api-1", "adapt", 0, MODELS[0]),
    ]
    for _ in range(random.randint(1, 4)):
        kind = random.choices(list(REQUESTS), list(REQUESTS.values()))[0]
        model = MODELS[0] if random.random() < 0.75 else MODELS[1]
        actions.append(request(random, random.random() * SECONDS, kind, model))
    for _ in range(random.choice((0, 1, 2, 3, 4))):
        kind = random.choices(list(ACCIDENTS), list(ACCIDENTS.values()))[0]
        value = random.choice(SERVICES if kind == "outage" else GROUPS)
        at = random.random() * SECONDS
        actions.append(Action(at, "operator", kind, random.getrandbits(16), value, random.randint(0, 40)))
    for _ in range(2 if random.random() < SECOND_SCENARIO_RATE else 1):
        if name := random.choices(list(SCENARIOS), list(SCENARIOS.values()))[0]:
            actions += scenario(random, name)
    return sorted(actions, key=lambda action: (action.at, action.actor, action.kind, action.choice))


def request(random: Random, at: float, kind: str, model: str) -> Action:
    size = random.randint(1, 4) if kind in SIZED else 1
    return Action(at, random.choice(("api-1", "api-2")), kind, random.getrandbits(16), model, size)


def scenario(random: Random, name: str) -> list[Action]:
    """Requests that belong together, in order."""
    start = 8.0 + random.random() * 20.0
    if name == "restore":
        found = [
            Action(start, "operator", "backup"),
            request(random, start + random.random() * 10.0, "erase", ""),
            Action(start + 20.0 + random.random() * 20.0, "operator", "restore"),
        ]
        for _ in range(random.randint(1, 4)):
            at = start - 5.0 + random.random() * 25.0
            found.append(request(random, at, random.choice(RESTORE_REQUESTS), MODELS[0]))
        return found
    if name == "overtaking":
        return overtaking(random, start)
    if name == "quarantine":
        first, others = ("add_bad", "adapt"), QUARANTINE_REQUESTS
    else:
        first, others = ("add_pending",), LABEL_REQUESTS
    found = [request(random, start + 0.5 * i, kind, MODELS[0]) for i, kind in enumerate(first)]
    for _ in range(random.randint(1, 3)):
        found.append(request(random, start + 2.0 + random.random() * 25.0, random.choice(others), MODELS[0]))
    if name == "labels" and random.random() < 0.5:  # the examples are removed while a request names them
        at, kind = start + 10.0, random.choice(("remove_pending", "erase"))
        found.append(replace(request(random, at, "choose", MODELS[0]), actor="api-1"))
        found.append(replace(request(random, at + random.random() * 8.0, kind, MODELS[0]), actor="api-2"))
    return found


def overtaking(random: Random, start: float) -> list[Action]:
    """A person is erased while jobs of the model run, and a worker may pause for longer than its lease."""
    found = [
        request(random, start, "add", MODELS[0]),
        request(random, start + 0.5, random.choice(("adapt", "retrain")), MODELS[0]),
        request(random, start + 0.5 + random.random() * 12.0, "erase", ""),
    ]
    if random.random() < 0.7:
        at, worker = start + random.random() * 4.0, random.choice(("worker-1", "worker-2"))
        pause = 20 + random.getrandbits(4)
        found.append(Action(at, "operator", "stall", pause, worker, random.randint(0, 60)))
    return found
