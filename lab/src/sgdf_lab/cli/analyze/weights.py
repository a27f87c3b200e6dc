"""`sgdf analyze hessian`, `landscape` and `path`: the loss around the weights of runs."""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.cli.analyze import subjects
from sgdf_lab.cli.analyze.subjects import as_user_error, origin, save_figure, save_numbers
from sgdf_lab.cli.options import Commands, open_console, say

if TYPE_CHECKING:
    import numpy as np


# --- hessian: the largest eigenvalues, the trace and the density ----------------------------------

HESSIAN_BATCH = 200  # smaller than for losses: second derivatives need more memory


def add_hessian(subparsers: Commands) -> None:
    parser = subparsers.add_parser("hessian", help="the largest eigenvalues, trace and density")
    add = parser.add_argument
    add("--k", type=int, default=50, help="eigenvalues (default %(default)s)")
    add("--trace-samples", type=int, default=100, metavar="N", help="random vectors for the trace "
        "(default %(default)s)")  # fmt: skip
    add("--no-density", action="store_true", help="leave out the density, which is about "
        "40 %% of the work")  # fmt: skip
    subjects.add_moments(parser)
    subjects.add_runs(parser, batch=HESSIAN_BATCH)
    parser.set_defaults(run=run_hessian)


def run_hessian(options: argparse.Namespace) -> None:
    """Print the largest eigenvalue and the trace of each run, and draw all of them."""
    from torch.nn.functional import cross_entropy

    from sgdf_lab.instruments import figures, hessian
    from sgdf_lab.support.numerics import find_device

    console, device = open_console(), find_device(options.device)
    spectra = {}
    found = subjects.find_subjects(options.runs, options.epochs)
    say(console, subjects.plan_in_words("the Hessian", found, options, device))
    for subject in found:
        model, data = subjects.load_subject(subject, options, device)
        with as_user_error(str(subject.folder)):
            spectrum = hessian.spectrum(
                *(model, cross_entropy, data),
                k=options.k,
                trace_samples=options.trace_samples,
                density=not options.no_density,
                seed=options.seed,
            )
        spectra[subject.label] = spectrum
        say(console, f"{subject.label}: largest eigenvalue {spectrum.largest:.5g}, trace "
            f"{spectrum.trace:.5g} ± {spectrum.trace_standard_error:.2g} (standard error), "
            f"{spectrum.products} products in {spectrum.seconds:.0f} s")  # fmt: skip
        values = {**dataclasses.asdict(spectrum), "run": str(subject.folder)}
        file = options.out / f"hessian-{subject.name}.json"
        save_numbers(console, file, {**values, **origin(options, device)})
    say(console, f"Hessian of the mean cross-entropy over {spectrum.images} training images; "
        f"{spectrum.mode}")  # fmt: skip
    stem = f"hessian-{found[0].name}" if len(found) == 1 else "hessian"
    save_figure(console, figures.eigenvalues(spectra), options.out / stem)
    if not options.no_density:
        save_figure(console, figures.density(spectra), options.out / f"{stem}-density")


# --- landscape: the loss in a plane or along a line -----------------------------------------------

BATCH = 1000


def add_landscape(subparsers: Commands) -> None:
    parser = subparsers.add_parser("landscape", help="the loss around the weights, in a plane")
    add = parser.add_argument
    add("--size", type=int, default=51, help="points per axis (default %(default)s)")
    add("--span", type=float, default=1.0, help="how far to go, in units of the weights' own size "
        "(default %(default)s)")  # fmt: skip
    add("--dimensions", type=int, choices=(1, 2), default=2, help="1: a line (default 2)")
    subjects.add_moments(parser)
    subjects.add_runs(parser, batch=BATCH)
    parser.set_defaults(run=run_landscape)


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


def run_landscape(options: argparse.Namespace) -> None:
    """Measure each run's surface, resuming what was interrupted, and draw all of them."""
    from torch.nn.functional import cross_entropy

    from sgdf_lab.instruments import figures, landscape
    from sgdf_lab.support.files import explained
    from sgdf_lab.support.numerics import find_device

    console, device = open_console(), find_device(options.device)
    kind = "line" if options.dimensions == 1 else "landscape"
    surfaces = {}
    found = subjects.find_subjects(options.runs, options.epochs)
    say(console, subjects.plan_in_words("the loss", found, options, device))
    for subject in found:
        model, data = subjects.load_subject(subject, options, device)
        file = options.out / f"{kind}-{subject.name}.npz"
        with as_user_error(str(subject.folder)), explained(options.out):
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


# --- path: through the weights that a run kept ----------------------------------------------------

BATCH = 1000


def add_path(subparsers: Commands) -> None:
    parser = subparsers.add_parser("path", help="the path of a run with --keep, over the loss")
    parser.add_argument(
        "--size", type=int, default=31, help="points per axis (default %(default)s)"
    )
    subjects.add_runs(parser, batch=BATCH, effect="batch norm uses their statistics")
    parser.set_defaults(run=run_path)


def run_path(options: argparse.Namespace) -> None:
    """Draw each run's path, from the weights it kept to its last ones, over the loss."""
    from torch.nn.functional import cross_entropy

    from sgdf_lab.instruments import figures, landscape
    from sgdf_lab.support.files import explained
    from sgdf_lab.support.numerics import find_device

    console, device = open_console(), find_device(options.device)
    found = subjects.find_subjects(options.runs)
    say(console, subjects.plan_in_words("the path", found, options, device))
    for subject in found:
        epochs, weights = subjects.kept_weights(subject)
        model, data = subjects.load_subject(subject, options, device)
        stem = options.out / f"path-{subject.name}"
        with as_user_error(str(subject.folder)), explained(options.out):
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
