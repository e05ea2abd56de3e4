"""`python -m gradguard`, the same as `gradguard`."""

import sys

from gradguard.cli import main


if __name__ == "__main__":
    sys.exit(main())
