"""`sgdf analyze hessian`: the largest eigenvalues, the trace and the density of runs' Hessians."""

import argparse
import dataclasses

from sgdf_lab.cli.analyze import subjects
from sgdf_lab.cli.analyze.output import origin, refusals, save_figure, save_numbers
from sgdf_lab.cli.options import Commands, say
from sgdf_lab.cli.screen import open_console

BATCH = 200  # smaller than for losses: second derivatives need more memory


def add_to(subparsers: Commands) -> None:
    parser = subparsers.add_parser("hessian", help="the largest eigenvalues, trace and density")
    add = parser.add_argument
    add("--k", type=int, default=50, help="eigenvalues (default %(default)s)")
    add("--trace-samples", type=int, default=100, metavar="N", help="random vectors for the trace "
        "(default %(default)s)")  # fmt: skip
    add("--no-density", action="store_true", help="leave out the density, which is about "
        "40 %% of the work")  # fmt: skip
    subjects.add_moments(parser)
    subjects.add_runs(parser, batch=BATCH)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the largest eigenvalue and the trace of each run, and draw all of them."""
    from torch.nn.functional import cross_entropy

    from sgdf_lab.instruments import figures, hessian

    console, device = open_console(), subjects.device_from(options)
    spectra = {}
    found = subjects.find(options.runs, options.epochs)
    say(console, subjects.plan_in_words("the Hessian", found, options, device))
    for subject in found:
        model, data = subjects.load(subject, options, device)
        with refusals(str(subject.folder)):
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
