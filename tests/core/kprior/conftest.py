"""Settings of the property tests: the same examples on every run, and no deadline that a busy machine would miss.

Failures are not shrunk: the problems are small and named by their parameters, and shrinking can take minutes.
"""

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "seeded",
    derandomize=True,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("seeded")
