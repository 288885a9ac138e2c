"""What the engine takes: the options of a model, from what callers said. One place for each conversion."""

from __future__ import annotations

from core.kprior import CertifiedRemoval, MemoryPolicy, Select, Training
from core.models.policy import Policy
from core.models.training import TrainingSchema


def solver_options(training: TrainingSchema) -> Training:
    return Training(**training.model_dump(exclude={"removal"}))


def removal_promise(training: TrainingSchema) -> CertifiedRemoval | None:
    """The promise of certified removal, where the model was created with one."""
    return None if training.removal is None else CertifiedRemoval(**training.removal.model_dump())


def memory_policy(policy: Policy) -> MemoryPolicy:
    memory = policy.memory
    return MemoryPolicy(memory.fraction, memory.cap, Select(memory.select), memory.balance)
