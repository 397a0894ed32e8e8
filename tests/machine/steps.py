"""Everything that may happen to a table, as values: a name, and arguments that say nothing about how the table is kept.

Owns `steps_for`, the strategy, and `known_steps`: what tables of a kind can do. The name of a step is that of the function that
does it, in one of the step modules (`doing` lists them).
"""

from typing import Any

from hypothesis import strategies as st

from tests.machine.model import FILTERS
from tests.machine.setup import KEYS, Kind

Step = tuple[str, dict[str, Any]]

_NUMBERS = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=6)
_UNIQUE = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4, unique=True)
_NUMBER = st.integers(0, KEYS - 1)
_FILTER = st.sampled_from(list(FILTERS))
_WORD = st.sampled_from(["w1", "w3", "x0", "common"])
_HOW = st.sampled_from(["put", "nowait", "async"])
_SMALL = st.integers(0, 9)

_ANY: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "put": {"numbers": _NUMBERS, "parts": st.integers(1, 3)},
    "put_nowait": {"numbers": _NUMBERS},
    "put_async": {"numbers": _NUMBERS},
    "put_once": {"numbers": _NUMBERS},
    "put_again": {"number": _NUMBER, "times": st.integers(2, 4)},
    "put_many": {"count": st.integers(15, 30)},
    "put_of_the_table": {"numbers": _UNIQUE},
    "seal": {},
    "flush": {},
    "close": {},
    "crash": {},
    "take_over": {"numbers": _NUMBERS},
    "share": {"numbers": _NUMBERS},
    "claim_by_hand": {},
    "reopen": {},
    "flush_tails": {},
    "compact": {"most": st.sampled_from([1, None])},
    "compact_half": {"trim": st.booleans()},
    "collect": {},
    "maintain": {},
    "compact_all": {},
    "merge_files": {},
    "optimize": {},
    "add_column": {},
    "drop_column": {},
    "evolve": {"numbers": _NUMBERS, "adds": st.booleans()},
    "change_indexes": {"which": _SMALL},
    "maintain_indexes": {"names": st.sampled_from([None, "all", "by_v", "by_t"])},
    "drop": {"numbers": _UNIQUE},
    "verify": {},
    "repair": {"for_repair": st.booleans()},
    "look_at_numbers": {},
    "snapshot": {},
    "checkpoint": {},
    "drop_checkpoint": {"which": _SMALL},
    "remember_the_time": {},
    "look_back": {"which": _SMALL},
    "look_back_to_a_version": {"back": st.integers(0, 5)},
    "scan": {"where": _FILTER, "columns": st.sampled_from([None, ["v"], ["s", "v"]])},
    "page": {"where": _FILTER, "limit": _SMALL, "offset": _SMALL, "descending": st.booleans()},
    "count": {"where": _FILTER},
    "query": {"where": _FILTER},
    "near": {"x": _SMALL, "k": st.integers(1, 8), "where": _FILTER},
    "find": {"word": _WORD, "where": _FILTER},
    "near_or_found": {"x": _SMALL, "word": _WORD, "where": _FILTER},
    "query_with_names": {"where": _FILTER},
    "read_as": {"where": _FILTER},
    "read_async": {"numbers": _NUMBERS, "where": _FILTER},
    "merge_by_hand": {},
    "read_elsewhere": {"where": _FILTER},
    "memtables": {"where": _FILTER, "x": _SMALL},
    "read_the_log": {},
    "follow": {"before": st.booleans()},
    "consumers": {"drop": st.booleans()},
    "changes_since": {"which": _SMALL},
    "changes_in_parts": {"which": _SMALL, "where": _FILTER},
    "diff": {"which": _SMALL, "before": st.booleans()},
}
_KEYED: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "delete": {"numbers": _NUMBERS},
    "delete_nowait": {"numbers": _NUMBERS, "waits": st.booleans()},
    "shard_puts": {"numbers": _UNIQUE, "how": _HOW},
    "get": {"number": st.integers(0, KEYS + 1)},
    "lookup": {"numbers": st.lists(st.integers(0, KEYS + 1), max_size=8), "outside": st.booleans()},
    "put_late": {"numbers": _UNIQUE, "back": st.integers(1, 40)},
}
_PLAIN: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "insert": {"numbers": _UNIQUE},
    "put_absent": {"numbers": _NUMBERS},
    "put_larger": {"numbers": _NUMBERS, "back": st.integers(0, 30)},
    "keep": {"numbers": _NUMBERS, "columns": st.sampled_from([["v"], ["v", "s"]])},
    "keep_where": {"numbers": _NUMBERS},
    "update": {"numbers": _NUMBERS},
    "update_where": {"where": _FILTER},
    "delete_where": {"where": _FILTER},
    "update_of_the_table": {"numbers": _UNIQUE},
    "compare_and_set": {"number": _NUMBER, "right": st.booleans(), "gone": st.booleans()},
    "shard_deletes": {"numbers": _UNIQUE, "how": _HOW},
    "shard_changes": {"numbers": _UNIQUE},
    "append_once": {"numbers": _UNIQUE},
    "append": {"numbers": _UNIQUE},
}
_WITH_BLOBS: dict[str, dict[str, st.SearchStrategy[Any]]] = {"blob": {"number": st.integers(0, KEYS + 1)}}
_WITH_OTHERS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "peer_writes": {"numbers": _UNIQUE, "deletes": st.booleans()},
    "lance_writes": {"numbers": _UNIQUE},
    "lance_writes_below": {"numbers": _UNIQUE},
    "lancedb_writes": {"numbers": _UNIQUE},
    "peer_reads": {},
}


def known_steps(kind: Kind) -> dict[str, dict[str, st.SearchStrategy[Any]]]:
    """What can happen to a table of this kind, and with which arguments."""
    groups = [_ANY]
    if kind.key:
        groups.append(_KEYED)
    if kind.is_plain:
        groups += [_PLAIN, _WITH_BLOBS if kind.has_blobs else _WITH_OTHERS]
    return {name: arguments for group in groups for name, arguments in group.items()}


def steps_for(kind: Kind) -> st.SearchStrategy[Step]:
    known = known_steps(kind)
    names = [*known, *["put"] * 4, *["flush", "compact", "look_back"] * 2]
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), st.fixed_dictionaries(known[name])))
