"""``python -m doubtless.cli`` is the command ``doubtless``."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
