"""`sgdf data list`: what is here, told by the names of files alone."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sgdf.lab.data import folders, places, voc
from sgdf.lab.data.sets import FACTS


def run(folder: str | Path | None = None, console: Console | None = None) -> None:
    folder = places.data_folder(folder)
    table = Table(title=f"Datasets in {escape(str(folder))}")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("train / test", justify="right")
    table.add_column("classes", justify="right")
    table.add_column("here")
    table.add_column("from, or fetched by", overflow="fold")
    for name, facts in FACTS.items():
        here, where = _state(name, folder)
        table.add_row(
            name, f"{facts.train} / {facts.test}", str(facts.classes), here, escape(where)
        )
    for known in folders.LAYOUTS.values():
        place = folders.home(known.name, folder)
        table.add_row(
            known.name,
            f"{known.train} / {known.test}",
            str(known.classes),
            "yes" if place else "no",
            escape(f"the files in {place}" if place else known.origin),
        )
    here, where = voc.state(folder)
    train, test = (sum(voc.OFFICIAL[part] for part in p) for p in (voc.TRAINING, voc.TEST))
    table.add_row("voc", f"{train} / {test}", str(len(voc.CLASSES)), here, escape(where))
    (console or Console()).print(table)


def _state(name: str, folder: Path) -> tuple[str, str]:
    """Here or not, and where from or by which command."""
    if name == "digits":
        return "yes", "scikit-learn"
    for source in places.find(name, folder):
        return "yes", str(source)
    here = "half" if places.half_fetched(name, folder) else "no"
    return here, places.fetch_command(name, folder)
