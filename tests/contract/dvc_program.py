"""`python -m dvc` as a script, which a process with loaded modules can run."""

import sys

from dvc.cli import main

if __name__ == "__main__":
    sys.exit(main())
