"""Histories: what callers, operators and accidents do, and when. A seed gives a list of actions."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

MODELS = ("alpha", "beta")
PEOPLE = ("ann", "bob", "eve")
SECONDS = 50.0
"""Over which the actions are spread."""
GROUPS = ("worker-1", "worker-2", "scheduler", "outbox", "webhooks", "api-1", "api-2")
SCENARIOS = {"restore": 0.2, "quarantine": 0.4, "labels": 0.4}
"""Share of histories with requests that would rarely meet by chance (`scenario`)."""
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
ACCIDENTS = {"kill": 12, "stall": 8, "outage": 6, "machine_crash": 2}


QUARANTINE_REQUESTS = ("accept", "accept", "discard", "remove_bad", "erase", "add", "add_bad", "retrain", "resend")
LABEL_REQUESTS = ("label", "label", "label", "adapt", "erase", "erase_held", "remove")
SIZED = ("add", "add_bad", "add_pending", "label", "remove")


def generate(seed: int | str) -> list[Action]:
    """The actions of a history."""
    random = Random(f"actions {seed}")
    actions = [
        Action(0.1, "api-1", "add", 0, MODELS[0], size=8),
        Action(0.2, "api-1", "add", 12, MODELS[0], size=4),
        Action(0.4, "api-1", "adapt", 0, MODELS[0]),
    ]
    for _ in range(random.randint(1, 7)):
        kind = random.choices(list(REQUESTS), list(REQUESTS.values()))[0]
        model = MODELS[0] if random.random() < 0.75 else MODELS[1]
        actions.append(request(random, random.random() * SECONDS, kind, model))
    for _ in range(random.choice((0, 1, 2, 3, 4, 6))):
        kind = random.choices(list(ACCIDENTS), list(ACCIDENTS.values()))[0]
        value = random.choice(SERVICES if kind == "outage" else GROUPS)
        at = random.random() * SECONDS
        actions.append(Action(at, "operator", kind, random.getrandbits(16), value, random.randint(0, 40)))
    for name, rate in SCENARIOS.items():
        if random.random() < rate:
            actions += scenario(random, name)
    return sorted(actions, key=lambda action: (action.at, action.actor, action.kind, action.choice))


def request(random: Random, at: float, kind: str, model: str) -> Action:
    size = random.randint(1, 4) if kind in SIZED else 1
    return Action(at, random.choice(("api-1", "api-2")), kind, random.getrandbits(16), model, size)


def scenario(random: Random, name: str) -> list[Action]:
    """Requests that belong together, in order."""
    start = 8.0 + random.random() * 20.0
    if name == "restore":
        return [
            Action(start, "operator", "backup"),
            request(random, start + random.random() * 10.0, "erase", ""),
            Action(start + 20.0 + random.random() * 20.0, "operator", "restore"),
        ]
    if name == "quarantine":
        first, others = ("add_bad", "adapt"), QUARANTINE_REQUESTS
    else:
        first, others = ("add_pending",), LABEL_REQUESTS
    found = [request(random, start + 0.5 * i, kind, MODELS[0]) for i, kind in enumerate(first)]
    for _ in range(random.randint(1, 3)):
        found.append(request(random, start + 2.0 + random.random() * 25.0, random.choice(others), MODELS[0]))
    return found
