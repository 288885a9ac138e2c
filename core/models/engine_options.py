"""The options of a model as the engine takes them, converted from the schemas of requests."""

from core.kprior import CertifiedRemoval, MemoryPolicy, Select, Training
from core.kprior.model.spec import Spec
from core.models.policy import Policy
from core.models.training_options import TrainingSchema

MAX_TREE_MEMORY = 1_000
"""Largest memory of a tree ensemble, each of whose examples has thousands of features."""


def solver_options(training: TrainingSchema) -> Training:
    return Training(**training.model_dump(exclude={"removal"}))


def removal_promise(training: TrainingSchema) -> CertifiedRemoval | None:
    """The promise of certified removal, if the model was created with one."""
    return None if training.removal is None else CertifiedRemoval(**training.removal.model_dump())


def memory_policy(policy: Policy, spec: Spec) -> MemoryPolicy:
    memory = policy.memory
    cap = min(memory.cap, MAX_TREE_MEMORY) if spec["architecture"]["kind"] == "trees" else memory.cap
    return MemoryPolicy(memory.fraction, cap, Select(memory.select), memory.balance)
