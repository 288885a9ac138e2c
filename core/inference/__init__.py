"""Weights ready to answer: what the service predicts with, and what every model published to MLflow carries along.

`core/tracking/packaging.py` copies this folder and `core/kprior/model`, as they are, into each published model. They
run there without the rest of this project: they import nothing else of ours, and each other by relative names.
"""
