"""A canary is seen however it is told: as it is, and in base64 behind any number of bytes, as Basic authentication has it."""

from __future__ import annotations

import base64

import pytest

from tests.kit.canaries import CANARY, refuse_canaries

AROUND = "a text that says something, and ends with "


@pytest.mark.parametrize("user", ["", "u", "us", "use"])
@pytest.mark.parametrize("rest", ["", "-", "-more"])
def test_a_canary_behind_a_user_in_base64_is_seen(user: str, rest: str) -> None:
    told = base64.b64encode(f"{user}:{CANARY}{rest}".encode()).decode()
    with pytest.raises(AssertionError):
        refuse_canaries([AROUND + told])


def test_a_canary_as_it_is_is_seen_and_a_text_without_one_passes() -> None:
    refuse_canaries([AROUND])
    with pytest.raises(AssertionError):
        refuse_canaries([f"{AROUND}{CANARY}"])
