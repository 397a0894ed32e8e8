"""The entry of the MemWAL index in a base table's manifest.

Owns its making on a table that has none. Invariants: the entry is committed on the version that it was made for, or not at
all; and never on a table that has one, where a commit of this kind would lose marks that were recorded meanwhile.
"""

from __future__ import annotations

from lance.dataset import Index, LanceOperation
from lance.lance import Bitmap

from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.lance.details import DETAILS_TYPE_URL, INDEX_NAME, MemWalDetails, encode_details


def commit_entry(base: BaseTable, details: MemWalDetails, entry_id: str) -> None:
    """Put an index entry with these details on the table; Lance refuses it if the version clashes."""
    index = Index(
        uuid=entry_id,
        name=INDEX_NAME,
        fields=[],
        dataset_version=base.version,
        fragment_ids=Bitmap(),
        index_version=0,
        index_details=(DETAILS_TYPE_URL, encode_details(details)),
    )
    with lance_errors("committing the MemWAL index"):
        base.commit(LanceOperation.CreateIndex([index], []))
