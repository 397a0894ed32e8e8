"""The frame of a drawing: an SVG that stands alone on white, and takes the colours of the page that it is a part of.

Owns the opening of the file: title and description for those who do not see it, and the classes of its parts, whose colours
are variables that `docs/site.css` sets.
"""

from __future__ import annotations

from html import escape

END = "</svg>"
_STYLE = """<style>
.mw-bg{fill:var(--md-default-bg-color,#fff)}
.mw-text{font:13px system-ui,sans-serif;fill:var(--md-default-fg-color,#202124)}
.mw-small{font:12px system-ui,sans-serif;fill:var(--mw-soft,#555a61)}
.mw-ours{fill:var(--mw-ours,#4a5bbf)}
.mw-theirs{fill:var(--mw-theirs,#b7791f)}
.mw-axis{fill:none;stroke:var(--mw-faint,#8a8f98)}
.mw-grid{stroke:var(--mw-faint,#8a8f98);stroke-width:.5;stroke-dasharray:3 4}
.mw-one,.mw-spread{stroke:var(--mw-ink,#3c4043);stroke-width:1.5}
.mw-line{fill:none;stroke:var(--mw-ours,#4a5bbf);stroke-width:1.5}
</style>"""


def opening(name: str, size: tuple[int, int], title: str, text: str) -> list[str]:
    """The first lines of a drawing; `name` is its own among all of them, since several may be parts of one page."""
    width, height = size
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc">',
        f'<title id="{name}-title">{escape(title)}</title>',
        f'<desc id="{name}-desc">{escape(text)}</desc>',
        _STYLE,
        f'<rect class="mw-bg" width="{width}" height="{height}"/>',
    ]
