"""Fitted estimators of other libraries -> spec and numbers, for `Client.import_model`.

Nothing is pickled, and neither scikit-learn nor torch is imported: whoever has an estimator of theirs has them loaded.
"""

from amend.estimators.composition import Import, compose
from amend.estimators.inputs import Inputs, describe_inputs

__all__ = ["Import", "Inputs", "compose", "describe_inputs"]
