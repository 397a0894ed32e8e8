"""Fixtures for every test: the storage services, which start at their first use; and how hypothesis draws.

The ci profile draws the same examples in every run, so that a red build is red again; the proofs draw new ones. No
example has a deadline of its own: a busy machine is no bug, and every test has one (pytest-timeout).
"""

from hypothesis import HealthCheck, settings

from tests.harness.profile import profile

pytest_plugins = ["services.azure", "services.s3"]

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("prove", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(profile())
