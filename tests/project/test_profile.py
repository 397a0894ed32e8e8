"""LANCE_MEMWAL_PROFILE chooses sizes, and a misspelt one is an error."""

from __future__ import annotations

import pytest

from lance_memwal.errors import InvalidInputError
from tests.harness.profile import profile, scaled


def test_the_default_profile_is_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANCE_MEMWAL_PROFILE", raising=False)
    assert profile() == "ci"
    assert scaled(ci=1, prove=2) == 1


def test_prove_takes_the_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCE_MEMWAL_PROFILE", "prove")
    assert scaled(ci=1, prove=2) == 2


def test_a_misspelt_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCE_MEMWAL_PROFILE", "proof")
    with pytest.raises(InvalidInputError, match="LANCE_MEMWAL_PROFILE"):
        scaled(ci=1, prove=2)
