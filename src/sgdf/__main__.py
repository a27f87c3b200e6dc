"""`python -m sgdf` is `sgdf`."""

import sys

from sgdf.cli import main

sys.exit(main())
