"""The catalogue of bugs fits the code, and what plants them tells a caught one from one that nobody sees."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bugs.catalogue import BUGS, Bug
from tests.bugs.planting import PACKAGE, ROOT, caught_by, with_bug

AT_LEAST = 87  # a bug whose feature goes is replaced by one in the mechanism that takes over
QUICK = next(bug for bug in BUGS if bug.name == "a bloom filter misses a key")


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_a_bug_has_its_place_in_the_code(bug: Bug) -> None:
    source = with_bug(bug)
    compile(source, bug.file, "exec")
    assert source != (PACKAGE / bug.file).read_text()


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_the_tests_of_a_bug_are_there(bug: Bug) -> None:
    assert bug.tests
    for tests in bug.tests:
        assert (ROOT / tests.partition("::")[0]).exists(), tests


def test_a_test_that_is_red_without_the_bug_catches_nothing(tmp_path: Path) -> None:
    red = tmp_path / "test_always_red.py"
    red.write_text("def test_red() -> None:\n    raise AssertionError\n")
    with pytest.raises(AssertionError, match="red without"):
        caught_by(replace(QUICK, tests=(str(red),)), tmp_path / "copy")


def test_there_are_enough_of_them() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= AT_LEAST


def test_a_planted_bug_is_caught(tmp_path: Path) -> None:
    assert caught_by(replace(QUICK, tests=("tests/format/test_bucket_hash.py",)), tmp_path) is not None


def test_a_change_that_is_no_bug_is_not_caught(tmp_path: Path) -> None:
    harmless = replace(QUICK, now=QUICK.was + "", tests=("tests/format/test_bucket_hash.py",))
    assert caught_by(harmless, tmp_path) is None
