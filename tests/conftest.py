"""Fixtures for every test: the storage services, which start at their first use; and how hypothesis draws.

The ci profile draws the same examples in every run, so that a red build is red again; the proofs draw new ones. No
example has a deadline of its own: a busy machine is no bug, and every test has one (pytest-timeout).

Interrupts interrupt: a shell that starts the tests in the background lets them, and all that they start, ignore SIGINT.

No test leaves a writer's threads to the next one, which may count them: what a test dropped is collected after it. Where
a writer of the whole file is open all the time, the threads are its own, and may become more. A handler at
crash points does not outlive its test.
"""

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from lance_memwal import crash_points
from tests.harness.profile import profile
from tests.kit.writers import SECONDS, memwal_threads

pytest_plugins = ["services.azure", "services.proxy", "services.s3"]

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("prove", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(profile())


def pytest_configure() -> None:
    """Before any test, in every process that runs tests."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_writer_is_left() -> Iterator[None]:
    before = memwal_threads()
    yield
    left = set() if before else memwal_threads()
    if left:
        gc.collect()
    for thread in left:
        thread.join(SECONDS)
        assert not thread.is_alive(), f"the test left {thread.name} running"


@pytest.fixture(autouse=True)
def _no_handler_is_left() -> Iterator[None]:
    yield
    crash_points.install(None)
