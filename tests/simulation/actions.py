"""Histories: what callers, operators and accidents do, and when. A seed gives a list of actions."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

MODELS = ("alpha", "beta")
PEOPLE = ("ann", "bob", "eve", "joe")
SECONDS = 100.0
"""Over which the actions are spread."""
GROUPS = ("worker-1", "worker-2", "scheduler", "outbox", "webhooks", "api-1", "api-2")
RESTORE_RATE = 0.15
"""Share of histories with a backup, an erasure and a restore, in this order; otherwise they would rarely meet."""
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
    "add": 30,
    "add_bad": 6,
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
    "accept": 4,
    "discard": 3,
    "cancel": 2,
}
"""Requests of callers, and how frequent each is."""
ACCIDENTS = {"kill": 12, "stall": 8, "outage": 6, "machine_crash": 2}


def generate(seed: int | str) -> list[Action]:
    """The actions of a history."""
    random = Random(f"actions {seed}")
    actions = [Action(0.1 + 0.1 * i, "api-1", "add", value=MODELS[0], size=3) for i in range(2)]
    for _ in range(random.randint(4, 12)):
        kind = random.choices(list(REQUESTS), list(REQUESTS.values()))[0]
        model = MODELS[0] if random.random() < 0.75 else MODELS[1]
        actor = random.choice(("api-1", "api-2"))
        size = random.randint(1, 4) if kind in ("add", "add_bad", "remove") else 1
        actions.append(Action(random.random() * SECONDS, actor, kind, random.getrandbits(16), model, size))
    for _ in range(random.choice((0, 1, 2, 3, 4, 6))):
        kind = random.choices(list(ACCIDENTS), list(ACCIDENTS.values()))[0]
        value = random.choice(SERVICES if kind == "outage" else GROUPS)
        at = random.random() * SECONDS
        actions.append(Action(at, "operator", kind, random.getrandbits(16), value, random.randint(0, 40)))
    if random.random() < RESTORE_RATE:
        start = 20.0 + random.random() * 20.0
        actions.append(Action(start, "operator", "backup"))
        actions.append(Action(start + random.random() * 20.0, "api-1", "erase", random.getrandbits(16)))
        actions.append(Action(start + 30.0 + random.random() * 40.0, "operator", "restore"))
    return sorted(actions, key=lambda action: (action.at, action.actor, action.kind, action.choice))
