"""`python -m trainfit`: the command line."""

import sys

from trainfit.cli import main

sys.exit(main())
