"""What the server process of `tests.harness.processes` imports, once, so that its children need not.

Owns the imports and one warning filter: Lance warns at every fork, rightly where it was used before; here it is only
imported. Not for import anywhere else.
"""

import warnings

import lance_memwal.cli as _command_line
import tests.harness.shard_crash as _crash_child
import tests.harness.table_life as _table_life

PRELOADED = (_command_line, _crash_child, _table_life)
warnings.filterwarnings("ignore", message="lance is not fork-safe")
