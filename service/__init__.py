"""The REST service: thin endpoints over `core`, one file or folder for each resource."""

import os

# Requests run side by side already. More threads for the arithmetic of one wait for each other: where the cores have
# other work to do, a product of small matrices takes ten times as long. Read when NumPy and torch are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
