"""The code that the service and the worker share.

Each folder is one noun of the project; ``kprior`` is the mathematics. Nothing here depends on HTTP or Celery, so that
each part can be called, tested and measured without a running server.
"""
