"""What mkdocs does not do by itself: pages from outside of docs/, and links that hold in the repository and on the site.

Owns which file of the repository is which page of the site, and the navigation of the RFCs. mkdocs calls the functions with
`on_` in their names. Invariants:

1. A page is one file. Nothing is copied into docs/: RFCs and the pages of the root are read where they are.
2. A link is written as it holds in the repository. On the site it leads to the page, or, if there is none, to the repository.
3. Whoever reads a page asks no other host: a page that would load something from elsewhere is not built.
4. A picture is an SVG file with a title, that stands alone. On the site it becomes a part of its page, so that it has the
   colours of the page, light or dark. A screenshot whose name ends with `-light` gives way to its `-dark` in the dark.
"""

from __future__ import annotations

import importlib
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from check_docs import repository

ROOT = Path(__file__).resolve().parent.parent
COMMANDS_PAGE = "reference/command-line.md"
TOP_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "THREAT-MODEL.md")

_FENCE = re.compile(r"^(`{3,}|~{3,})(.*)$")
_PICTURE = re.compile(r'<p><img alt="([^"]*)" src="([^"]+\.svg)"\s*/?></p>')
_SHOT = re.compile(r"^!\[([^\]]*)\]\(([^()\s]+)-light\.png\)$", re.MULTILINE)
_TAG = re.compile(r"<(script|img|iframe|source|link)\b[^>]*>")
_LINK = re.compile(r"(\]\()([^()\s]+)(\))")


def page_of(file: str) -> str | None:
    """The page of the site that a file of the repository is, by paths from their roots; None: it is none."""
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if file in TOP_PAGES:
        return f"project/{file.lower()}"
    return file if file.startswith("rfcs/") else None


def file_of(page: str) -> str:
    """The file of the repository that a page of the site is."""
    tops = {f"project/{name.lower()}": name for name in TOP_PAGES}
    return tops.get(page, page if page.startswith("rfcs/") else f"docs/{page}")


def link_on_site(target: str, page: str) -> str:
    """A link of a page, as it must read on the site."""
    path, hash_mark, anchor = target.partition("#")
    if own := re.match(rf"{re.escape(repository(ROOT))}/(?:blob|raw)/main/(.+)", path):
        file = own[1]
    elif "://" in target or target.startswith(("#", "mailto:")):
        return target
    else:
        file = posixpath.normpath(posixpath.join(posixpath.dirname(file_of(page)), path))
    there = page_of(file)
    if there is None:
        return f"{repository(ROOT)}/blob/main/{file}"
    return posixpath.relpath(there, posixpath.dirname(page) or ".") + hash_mark + anchor


Line = Callable[[str], str]


def text_on_site(text: str, page: str, more: Line = str) -> str:
    """The Markdown of a page with its links changed; blocks of code stay, with nothing but their language in the first line.

    `more` is done to each line of prose.
    """
    fence, lines = "", list[str]()
    for line in text.splitlines():
        match = _FENCE.match(line)
        if match and not fence:
            fence = match.group(1)
            line = fence + (match.group(2).split() or [""])[0]
        elif match and match.group(1).startswith(fence):
            fence = ""
        elif not fence:
            line = more(_LINK.sub(lambda found: found[1] + link_on_site(found[2], page) + found[3], line))
        lines.append(line)
    return "\n".join(lines) + "\n"


def in_both_themes(text: str) -> str:
    """The Markdown of a page with two screenshots for each light one; the theme of the site shows one of them."""
    return _SHOT.sub(r"![\1](\2-light.png#only-light)\n![\1](\2-dark.png#only-dark)", text)


def named_pages(nav: Any) -> Iterator[str]:
    """The pages that a part of the navigation names."""
    for value in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from named_pages(value)
    if isinstance(nav, str):
        yield nav


def completed(nav: list[Any]) -> list[Any]:
    """The navigation with the pages of howto/ and design/ that it does not name, and with the RFCs."""
    missing = {page for page in _site_pages() if page not in set(named_pages(nav))}
    done = []
    for section in nav:
        ((title, entries),) = section.items()
        folder = {"How to": "howto/", "Design": "design/"}.get(title)
        more = sorted(page for page in missing if folder and page.startswith(folder))
        rfcs = [{"RFCs": sorted(page for page in missing if page.startswith("rfcs/"))}] if title == "Design" else []
        done.append({title: [*entries, *more, *rfcs]})
    return done


def _site_pages() -> Iterator[str]:
    for folder in ("docs", "rfcs"):
        for file in (ROOT / folder).rglob("*.md"):
            if (page := page_of(file.relative_to(ROOT).as_posix())) is not None:
                yield page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation."""
    config.nav = completed(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source in [*(ROOT / name for name in TOP_PAGES), *sorted((ROOT / "rfcs").glob("*.md"))]:
        if page := page_of(source.relative_to(ROOT).as_posix()):
            files.append(File.generated(config, page, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Change the links of a page, and link names to the reference; the page of the command line gets its commands."""
    sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src")]  # mkdocs takes ours away after it has loaded this file
    uri = page.file.src_uri
    if uri.startswith(("rfcs/", "reference/", "project/")):
        text = text_on_site(markdown, uri)
    else:
        linked = importlib.import_module("reference_links").linked
        text = text_on_site(markdown, uri, partial(linked, seen=set()))
    if uri == COMMANDS_PAGE:
        text += importlib.import_module("command_reference").reference()
    del sys.path[:2]
    return in_both_themes(text)


def on_page_content(html: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Make pictures a part of the page."""
    folder = Path(page.file.abs_src_path or ROOT).parent

    def inline(found: re.Match[str]) -> str:
        return f'<div class="mw-picture">{(folder / found[2]).read_text(encoding="utf-8")}</div>'

    return _PICTURE.sub(inline, html)


def loads_elsewhere(html: str) -> str | None:
    """The first tag of a page that makes a browser ask another host."""
    for tag in _TAG.finditer(html):
        if re.search(r'\b(?:src|href)="(?:https?:)?//', tag[0]) and not re.search(
            r'rel="(?:canonical|prev|next)"', tag[0]
        ):
            return tag[0]
    return None


def on_post_page(output: str, /, *, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """Refuse a page that loads something from another host."""
    if found := loads_elsewhere(output):
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {found}")
    return output
