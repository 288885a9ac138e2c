"""K-priors: move a trained model to where a retrain would have put it, from the model and a small memory of its past.

Khan & Swaroop, *Knowledge-Adaptation Priors*, NeurIPS 2021, and what has been learnt since. Tensors in, tensors out:
no files, no settings, no database.

    train(spec, data)                 a first version, from scratch
    adopt(spec, w, data, count)       a first version at weights that somebody else found
    adapt(state, memory, tasks)       the next one, without the past; a network with rows that `draw` gives
    certify(state, data)              one pass: how far from a retrain it can be; `refine` brings it nearer, and
                                      `refine_for_erasure` to weights that nobody who was erased can be found in
    State.to_bytes, State.from_bytes  a version's state as one safetensors file

A first version, the next one without one of its examples, and how far from a retrain it can be:

>>> import torch
>>> from core.kprior import Examples, RemoveData, adapt, train
>>> spec = {"input": {"kind": "vector", "dim": 1}, "target": {"kind": "binary"}}
>>> spec |= {"architecture": {"kind": "linear"}, "regularizer": {"kind": "l2", "delta": 1.0}}
>>> x = torch.linspace(-2, 2, 100)[:, None].double()
>>> rows = Examples(torch.arange(100), x, (x > torch.sin(9 * x)).double())
>>> first = train(spec, [rows])
>>> second = adapt(first.state, first.memory, [RemoveData([rows.take(rows.key == 50)])])
>>> second.cost.data_passes, second.certificate.relative < 0.01
(0, True)
"""

from core.kprior.adaptation.adaptation import adapt
from core.kprior.adaptation.erasure import refine_for_erasure
from core.kprior.certificate.certificate import Certificate, Measurement
from core.kprior.certificate.certified_removal import CertifiedRemoval
from core.kprior.certificate.membership import membership_auc
from core.kprior.certificate.network import Audit
from core.kprior.certificate.refinement import certify, refine
from core.kprior.cost import Cost
from core.kprior.data.drawing import Draw, draw_from
from core.kprior.data.examples import Data, Examples
from core.kprior.memory.memory import Memory, MemoryPolicy, Select
from core.kprior.model.predictor import Predictor
from core.kprior.objective.methods import MODES, OURS, PAPER, REPLAY, WEIGHT_PRIOR, Method, Weighting, distillation
from core.kprior.objective.tasks import (
    AddData,
    ChangeInput,
    ChangeLoss,
    ChangeModel,
    ChangeRegularizer,
    ChangeTarget,
    RemoveData,
    Task,
)
from core.kprior.result import Result
from core.kprior.solvers import SolverError, Training
from core.kprior.state import State, StateError
from core.kprior.training.adoption import adopt
from core.kprior.training.training import reselect, train

__all__ = [
    "MODES",
    "OURS",
    "PAPER",
    "REPLAY",
    "WEIGHT_PRIOR",
    "AddData",
    "Audit",
    "Certificate",
    "CertifiedRemoval",
    "ChangeInput",
    "ChangeLoss",
    "ChangeModel",
    "ChangeRegularizer",
    "ChangeTarget",
    "Cost",
    "Data",
    "Draw",
    "Examples",
    "Measurement",
    "Memory",
    "MemoryPolicy",
    "Method",
    "Predictor",
    "RemoveData",
    "Result",
    "Select",
    "SolverError",
    "State",
    "StateError",
    "Task",
    "Training",
    "Weighting",
    "adapt",
    "adopt",
    "certify",
    "distillation",
    "draw_from",
    "membership_auc",
    "refine",
    "refine_for_erasure",
    "reselect",
    "train",
]
