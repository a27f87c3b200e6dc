"""`python -m sgdf` is `sgdf`."""

from sgdf.cli.main import run

run()
