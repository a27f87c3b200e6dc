"""`python -m sgdf` is `sgdf`."""

from sgdf_lab.cli.main import run

run()
