"""Fixtures for every test: the storage services, which start at their first use."""

pytest_plugins = ["services.azure", "services.s3"]
