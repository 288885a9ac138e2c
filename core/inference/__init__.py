"""Loaded models that predict, in the service and in every model published to MLflow.

`core/tracking/packaging.py` copies this folder and `core/kprior/model` into each published model, where they run
without the rest of the project. So they import only each other, with relative imports.
"""
