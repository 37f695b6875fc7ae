"""``python -m stateful_gpu_loader``: the command line."""

import sys

from stateful_gpu_loader.cli import main

if __name__ == "__main__":
    sys.exit(main())
