"""A local web page that shows a table, and changes nothing.

`addresses` says where it listens and under which names it answers; `running` serves `app`, whose every request passes
`gate`. `looks` looks at the table when a page asks, as often as it may; `questions` answers one query per client at a time,
within bounds, and draws its plan (`plans`); `browsing` turns the pages of logs and manifests, and
`timeline` shows events. `answers` says how all of it, and every error, becomes JSON. The page itself is in `page/`: plain
modules and styles that a browser takes as they are.
"""
