"""Hypothesis profiles, the same on every machine: no example database, no time limits, no CI defaults."""

from hypothesis import HealthCheck, settings

# `pytest tests/platforms/test_sim_exact.py --hypothesis-profile stress` runs fresh cases each time.
settings.register_profile(
    "stress",
    parent=settings.get_profile("default"),
    max_examples=400,
    derandomize=False,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
