"""The worker: takes jobs, computes new versions with `core`, and records the results."""

import os

# A thread that waits for others of the same computation spins this often before it sleeps. With the default of 300 000,
# a pass takes several times as much CPU time on a busy machine. torch's OpenMP reads this variable when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
