"""`python -m sgdf_lab` is `sgdf`."""

from sgdf_lab.cli.main import run

run()
