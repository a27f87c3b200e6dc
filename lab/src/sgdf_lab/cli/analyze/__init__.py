"""`sgdf analyze`: the instruments, on runs and tasks of the lab.

Heavy imports wait until a command runs.
"""

from sgdf_lab.cli.analyze.gradients import add_gradients
from sgdf_lab.cli.analyze.weights import add_hessian, add_landscape, add_path
from sgdf_lab.cli.options import Commands


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("analyze", help="Hessian, landscape and gradients of a model")
    instruments = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for add in (add_hessian, add_landscape, add_path, add_gradients):
        add(instruments)
