"""Converts fitted estimators of scikit-learn and torch to a model spec and weights, for `Client.import_model`.

Nothing is pickled, and neither library is imported here: a caller who has an estimator has already loaded it.
"""

from amend.estimators.composition import Import, compose
from amend.estimators.fitted_rows import Inputs, describe_inputs

__all__ = ["Import", "Inputs", "compose", "describe_inputs"]
