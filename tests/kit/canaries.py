"""Credentials that are looked for wherever somebody is told something."""

from __future__ import annotations

import base64
from collections.abc import Iterable

CANARY = "CaNaRy7f3a"
SPELLINGS = (CANARY, base64.b64encode(CANARY.encode()).decode()[:10])
CREDENTIALS = {
    name: f"{CANARY}-{name}"
    for name in (
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "azure_storage_account_key",
        "azure_storage_sas_key",
        "google_service_account_key",
    )
}


def refuse_canaries(texts: Iterable[str], *, least: int = 20) -> None:
    """Fail if a credential is in one of these texts, or if they say next to nothing."""
    told = list(texts)
    assert sum(map(len, told)) > least, "what says nothing hides nothing"
    leaks = [(text, text.find(word)) for text in told for word in SPELLINGS if word in text]
    assert not leaks, leaks[0][0][max(0, leaks[0][1] - 500) :][:700]
