"""`python -m memwal`."""

import sys

from memwal.cli import main

if __name__ == "__main__":
    sys.exit(main())
