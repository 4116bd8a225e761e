"""`python -m trainfit`: the command line."""

import sys

from trainfit.cli import command

sys.exit(command())
