"""`python -m lance_memwal`."""

import sys

from lance_memwal.cli import main

if __name__ == "__main__":
    sys.exit(main())
