"""A local web page that shows a table, and changes nothing.

`running` serves `app`. Every request passes `gate`, which also says where the page listens and under which names it answers.
`looks` looks at the table when a page asks, as often as it may; `questions` answers one query per client at a time, within
limits, and draws its plan; `browsing` turns the pages of logs and manifests, and `timeline` shows events. `answers` says how
all of it, and every error, becomes JSON. The page itself is in `page/`: plain modules and styles that a browser takes as they
are.
"""
