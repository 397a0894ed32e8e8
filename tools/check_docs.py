"""Check the documentation: every relative link leads somewhere, and every page can be reached from its index.

Reads the Markdown files of the project. Rules:

1. A relative link names a file of the project; an anchor names a heading of that file. So does a link to the project's own
   repository, which the README has: it is read on package indexes, too, where relative links lead nowhere.
2. Every page below docs/ is reachable by links from docs/index.md, every RFC from there too.
3. A fenced block says what it is (`KINDS`), so that the tests know what to do with it. Code runs, with few exceptions, which are
   named there.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "THREAT-MODEL.md")
FOLDERS = ("docs", "rfcs")
INDEX = "docs/index.md"
KINDS = {
    "python": "runs, from a namespace and a directory of its own",
    "python continued": "runs, after the block before it on its page",
    "python spark": "runs with Spark, one page in one session",
    "python s3": "runs, with the address of an S3 service that is started for the tests",
    "python azure": "runs, with the address of an Azure service that is started for the tests",
    "python theirs": "code of another library that is not installed here: compiled, not run",
    "bash": "runs",
    "bash install": "installs from a package index: not run",
    "bash checkout": "works in a checkout: not run, but its make targets and modules exist",
    "bash elsewhere": "needs hosts or credentials of yours: not run",
    "text": "no code",
}

_LINK = re.compile(r"\[[^\]\[]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
_FENCE = re.compile(r"^(`{3,}|~{3,})(.*)$")


def pages(root: Path) -> list[Path]:
    """Every page that is checked, in a stable order."""
    top = [root / name for name in TOP_PAGES if (root / name).exists()]
    return top + [page for folder in FOLDERS for page in sorted((root / folder).rglob("*.md"))]


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Every fenced block: its first line number, its language, its content."""
    fence, language, start, body = "", "", 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.match(line)
        if match and not fence:
            fence, language, start, body = match.group(1), match.group(2).strip(), number, []
        elif match and match.group(1).startswith(fence) and not match.group(2).strip():
            yield start, language, "\n".join(body) + "\n"
            fence = ""
        elif fence:
            body.append(line)


def prose(text: str) -> str:
    """The text with fenced blocks and code spans blanked out, line numbers kept."""
    fence, kept = "", list[str]()
    for line in text.splitlines():
        match = _FENCE.match(line)
        if match and not fence:
            fence = match.group(1)
        elif fence:
            fence = "" if match and match.group(1).startswith(fence) else fence
        else:
            kept.append(re.sub(r"`[^`]*`", "", line))
            continue
        kept.append("")
    return "\n".join(kept)


def anchors(text: str) -> set[str]:
    """The anchors that the headings of a page make."""
    headings = _HEADING.findall("\n".join(line for line in text.splitlines()))
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


@cache
def repository(root: Path) -> str:
    """The address of the project's files, from pyproject.toml; empty if it has none."""
    file = root / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"] if file.exists() else {}
    return str(project.get("urls", {}).get("Repository", "")).rstrip("/")


def links(page: Path, root: Path) -> Iterator[tuple[int, str, Path, str]]:
    """Every link to a file of the project: line, as written, target file, anchor."""
    address = repository(root)
    own = re.compile(rf"{re.escape(address)}/(?:blob|raw)/main/") if address else None
    for number, line in enumerate(prose(page.read_text(encoding="utf-8")).splitlines(), 1):
        for target in _LINK.findall(line):
            file, _, anchor = target.partition("#")
            if own is not None and own.match(file):
                yield number, target, (root / own.sub("", file)).resolve(), anchor
            elif "://" not in target and not target.startswith("mailto:"):
                yield number, target, (page.parent / file).resolve() if file else page.resolve(), anchor


def check(root: Path) -> list[str]:
    """All problems of the documentation below `root`."""
    root = root.resolve()
    found: list[str] = []
    reached: dict[Path, set[Path]] = {}
    for page in pages(root):
        shown = page.relative_to(root).as_posix()
        reached[page] = set()
        for line, written, target, anchor in links(page, root):
            reached[page].add(target)
            if not target.exists():
                found.append(f"{shown}:{line}: link to {written}: no such file")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
                found.append(f"{shown}:{line}: link to {written}: no such heading")
        for line, language, _ in blocks(page.read_text(encoding="utf-8")):
            if language not in KINDS:
                found.append(f"{shown}:{line}: fenced block of kind {language!r}; known: {', '.join(KINDS)}")
    seen, todo = {root / INDEX}, [root / INDEX]
    while todo:
        for target in reached.get(todo.pop(), set()) - seen:
            seen.add(target)
            todo.append(target)
    lost = [page for page in pages(root) if page.parent != root and page not in seen]
    return found + [f"{page.relative_to(root).as_posix()}:1: not reachable from {INDEX}" for page in lost]


def main() -> int:
    """Check the project's own documentation."""
    root = Path(__file__).resolve().parent.parent
    found = check(root)
    for problem in found:
        print(problem)
    print(f"docs: {len(pages(root))} pages, {len(found)} problem{'' if len(found) == 1 else 's'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
