"""The names that `core.kprior` exports."""

from core.kprior.adaptation.adaptation import adapt
from core.kprior.adaptation.erasure import refine_for_erasure
from core.kprior.adaptation.result import Result
from core.kprior.analyses.cross_validation import CrossValidation, cross_validate
from core.kprior.analyses.influence import influence
from core.kprior.analyses.labelling import choose_batch
from core.kprior.analyses.leave_one_out import leave_groups_out, leave_one_out
from core.kprior.analyses.what_if import what_if
from core.kprior.certificate.audit import Audit
from core.kprior.certificate.certificate import Certificate
from core.kprior.certificate.certified_removal import CertifiedRemoval
from core.kprior.certificate.membership import membership_auc
from core.kprior.certificate.refinement import certify, refine
from core.kprior.certificate.result import Measurement
from core.kprior.data.examples import Data, Examples
from core.kprior.data.random_samples import Draw, draw_from
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
from core.kprior.training.training import train
