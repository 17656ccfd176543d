"""`python -m derex.cli`."""

import sys

from derex.cli import main

if __name__ == "__main__":
    sys.exit(main())
