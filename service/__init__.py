"""The REST service: thin endpoints over `core`, one file or folder per resource."""

import os

# Requests already run concurrently. With more threads per request, the threads compete for the cores, and a product of
# small matrices takes ten times as long on a busy machine. NumPy and torch read this variable when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
