"""What the service and the worker share, and the only place where a model is changed.

Each folder is one noun of the project, beginning with ``kprior``, the mathematics. Nothing in here
knows HTTP or Celery, so that each part can be called, tested and measured without a running server.
"""
