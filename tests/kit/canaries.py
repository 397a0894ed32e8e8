"""Credentials that are looked for wherever somebody is told something.

Owns `CANARY`, its `SPELLINGS` and `refuse_canaries`. Base64 spells a text in three ways, by how many bytes come before it, and
hides its ends: of each way those letters are looked for that depend on nothing around.
"""

import base64
from collections.abc import Iterable

CANARY = "CaNaRy7f3a"


def _as_base64(before: int) -> str:
    """The letters of the canary in base64, with so many bytes in front of it; those that share bits with others left out."""
    letters = base64.b64encode(bytes(before) + CANARY.encode()).decode()
    return letters[-(-before * 8 // 6) : (before + len(CANARY)) * 8 // 6]


SPELLINGS = (CANARY, *map(_as_base64, range(3)))
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
