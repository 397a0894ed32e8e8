"""Bytes ⇄ values: pure codecs of everything that lies on storage, no I/O.

Owns one module per format; each documents its layout on its codec. Invariants:

1. A decoder takes its input as hostile: size limits first, full validation, and only `CorruptDataError` or
   `UnsupportedFormatError` leave it.
2. Equal values have equal bytes.

Called by: the manifest store, the WAL, flush, scan, compaction.
"""
