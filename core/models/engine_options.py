"""The options of a model as the engine takes them, converted from the schemas of requests."""

from core.kprior import CertifiedRemoval, MemoryPolicy, Select, Training
from core.models.policy import Policy
from core.models.training import TrainingSchema


def solver_options(training: TrainingSchema) -> Training:
    return Training(**training.model_dump(exclude={"removal"}))


def removal_promise(training: TrainingSchema) -> CertifiedRemoval | None:
    """The promise of certified removal, if the model was created with one."""
    return None if training.removal is None else CertifiedRemoval(**training.removal.model_dump())


def memory_policy(policy: Policy) -> MemoryPolicy:
    memory = policy.memory
    return MemoryPolicy(memory.fraction, memory.cap, Select(memory.select), memory.balance)
