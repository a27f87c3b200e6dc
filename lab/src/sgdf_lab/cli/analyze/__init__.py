"""`sgdf analyze`: the instruments, on runs and tasks of the lab. One file per subcommand.

Heavy imports wait until a command runs.
"""

from sgdf_lab.cli.analyze import gradients, hessian, landscape, path
from sgdf_lab.cli.options import Commands


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("analyze", help="Hessian, landscape and gradients of a model")
    instruments = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for subcommand in (hessian, landscape, path, gradients):
        subcommand.add_to(instruments)
