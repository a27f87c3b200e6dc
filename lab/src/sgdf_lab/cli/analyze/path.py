"""`sgdf analyze path`: the path of a training through the weights it kept, over the loss."""

import argparse
from pathlib import Path

from sgdf_lab.cli.analyze import subjects
from sgdf_lab.cli.analyze.output import origin, refusals, save_figure, save_numbers
from sgdf_lab.cli.options import Commands, say
from sgdf_lab.cli.screen import open_console

BATCH = 1000


def add_to(subparsers: Commands) -> None:
    parser = subparsers.add_parser("path", help="the path of a training with --keep, over the loss")
    parser.add_argument(
        "--size", type=int, default=31, help="points per axis (default %(default)s)"
    )
    subjects.add_runs(parser, batch=BATCH, effect="batch norm uses their statistics")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Draw each run's path, from the weights it kept to its last ones, over the loss."""
    from torch.nn.functional import cross_entropy

    from sgdf_lab.instruments import figures, landscape
    from sgdf_lab.support.files import explained

    console, device = open_console(), subjects.device_from(options)
    found = subjects.find(options.runs)
    say(console, subjects.plan_in_words("the path", found, options, device))
    for subject in found:
        epochs, weights = subjects.kept_weights(subject)
        model, data = subjects.load(subject, options, device)
        stem = options.out / f"path-{subject.name}"
        with refusals(str(subject.folder)), explained(options.out):
            path = landscape.path(model, weights)
            surface = landscape.path_surface(
                model, cross_entropy, data, path, size=options.size, save=f"{stem}.npz"
            )
        first, second = (100 * part for part in path.explained)
        say(console, f"{subject.label}: {first:.0f} and {second:.0f} % of the squared distances "
            f"from the end; loss {surface.loss:.5g} there; {surface.seconds:.0f} s\n"
            f"  in {stem}.npz")  # fmt: skip
        values = {"epochs": epochs, "points": path.points, "explained": path.explained}
        values |= {**surface.about(), "run": str(subject.folder), **origin(options, device)}
        save_numbers(console, Path(f"{stem}.json"), values)
        if options.size > 1:
            save_figure(console, figures.path_contours(surface, path, subject.label), stem)
