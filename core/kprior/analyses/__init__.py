"""Analyses: what a model would be after a change, without each example, in cross-validation, or with new labels.

An analysis adapts, evaluates and discards: it never changes a state. `what_if` does so for any change; the other
modules do so for many changes at once.

    what_if.py           one change: adapt and, if the bound requires it, refine or retrain
    leave_one_out.py     each example removed, in one pass
    group_removals.py    groups of examples removed exactly, many at a time
    cross_validation.py  for one or several penalties
    fold_solver.py       the optima without each fold, for one penalty after the other
    influence.py         the effect of each example or group on other predictions
    labelling.py         the unlabelled inputs whose labels would tell most
    head.py              what all of them need of a model: features, family and penalty of its linear head
"""
