"""The names that `core.kprior` exports."""

from core.kprior.adaptation.adaptation import adapt
from core.kprior.adaptation.erasure import refine_for_erasure
from core.kprior.adaptation.result import Result
from core.kprior.certificate.audit import Audit
from core.kprior.certificate.certificate import Certificate
from core.kprior.certificate.certified_removal import CertifiedRemoval
from core.kprior.certificate.measurement import Measurement
from core.kprior.certificate.membership import membership_auc
from core.kprior.certificate.refinement import certify, refine
from core.kprior.data.drawing import Draw, draw_from
from core.kprior.data.examples import Data, Examples
from core.kprior.memory.memory import Memory, MemoryPolicy, Select
from core.kprior.model.predictor import Predictor
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
from core.kprior.passes.cost import Cost
from core.kprior.solvers import SolverError, Training
from core.kprior.state import State, StateError
from core.kprior.training.adoption import adopt
from core.kprior.training.training import reselect, train
