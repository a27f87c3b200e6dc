"""`sgdf analyze landscape`: the loss around the weights of runs, in a plane or along a line."""

import argparse
from typing import TYPE_CHECKING

from sgdf_lab.cli.analyze import subjects
from sgdf_lab.cli.analyze.output import origin, refusals, save_figure, save_numbers
from sgdf_lab.cli.options import Commands, say
from sgdf_lab.cli.screen import open_console

if TYPE_CHECKING:
    import numpy as np

BATCH = 1000


def add_to(subparsers: Commands) -> None:
    parser = subparsers.add_parser("landscape", help="the loss around the weights, in a plane")
    add = parser.add_argument
    add("--size", type=int, default=51, help="points per axis (default %(default)s)")
    add("--span", type=float, default=1.0, help="how far to go, in units of the weights' own size "
        "(default %(default)s)")  # fmt: skip
    add("--dimensions", type=int, choices=(1, 2), default=2, help="1: a line (default 2)")
    subjects.add_moments(parser)
    subjects.add_runs(parser, batch=BATCH)
    parser.set_defaults(run=run)


def largest_words(values: "np.ndarray") -> str:
    """
    >>> import numpy as np
    >>> largest_words(np.array([1.5, np.inf, np.nan])), largest_words(np.array([1.5, 2]))
    ('up to 1.5, and 2 points not finite,', 'up to 2')
    """
    import numpy as np

    finite = values[np.isfinite(values)]
    words = f"up to {finite.max():.5g}" if finite.size else "no finite loss"
    lost = values.size - finite.size
    return f"{words}, and {lost} points not finite," if lost else words


def run(options: argparse.Namespace) -> None:
    """Measure each run's surface, resuming what was interrupted, and draw all of them."""
    from torch.nn.functional import cross_entropy

    from sgdf_lab.instruments import figures, landscape
    from sgdf_lab.support.files import explained

    console, device = open_console(), subjects.device_from(options)
    kind = "line" if options.dimensions == 1 else "landscape"
    surfaces = {}
    found = subjects.find(options.runs, options.epochs)
    say(console, subjects.plan_in_words("the loss", found, options, device))
    for subject in found:
        model, data = subjects.load(subject, options, device)
        file = options.out / f"{kind}-{subject.name}.npz"
        with refusals(str(subject.folder)), explained(options.out):
            surface = landscape.surface(
                *(model, cross_entropy, data),
                size=options.size,
                span=options.span,
                dimensions=options.dimensions,
                seed=options.seed,
                save=file,
            )
        surfaces[subject.label] = surface
        say(console, f"{subject.label}: loss {surface.loss:.5g}, {largest_words(surface.values)} "
            f"on the grid; {surface.seconds:.0f} s\n  in {file}")  # fmt: skip
        values = {**surface.about(), "run": str(subject.folder)}
        save_numbers(console, file.with_suffix(".json"), {**values, **origin(options, device)})
    say(console, f"Mean cross-entropy over {surface.images} training images; {surface.mode}")
    stem = options.out / (f"{kind}-{found[0].name}" if len(found) == 1 else kind)
    if options.dimensions == 1:
        save_figure(console, figures.profiles(surfaces), stem)
    elif options.size > 1:
        save_figure(console, figures.contours(surfaces), stem)
        save_figure(console, figures.relief(surfaces), stem.with_name(stem.name + "-3d"))
