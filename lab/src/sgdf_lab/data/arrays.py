"""Datasets of small images, which are read into memory and checked."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.data import synthetic as stand_in
from sgdf_lab.data.fetch import Fallback, Remote, disk_error, fetch_files
from sgdf_lab.data.formats.members import plain_or_gzipped
from sgdf_lab.data.forms import Form, Source
from sgdf_lab.data.location import data_folder, fetch_command
from sgdf_lab.data.spec import DatasetSpec
from sgdf_lab.data.splits import Dataset, Splits
from sgdf_lab.data.verify import DamagedData, check_splits
from sgdf_lab.support.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class ArrayDataset(DatasetSpec):
    """A dataset of small images of one size.

    Args:
        shape: of an image, C x H x W.
        mean, std: of pixels between 0 and 1, by which a model's input is normalised.
        forms: in which it may be on the disk, the best first: plain files before archives, a
            cache before what it was decoded from.
        folders: where to look beside the data folder.
        remotes: the official files to download.
        fallback: fetches it where the official server cannot be reached.
        balanced: whether every class has the same number of images.
        digests: `verify.split_digest` of the training and of the test split.
        channel_means: of pixels between 0 and 1, as they are in the published files; they tell
            channels in another order, or changed pixels, in images of any order.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    forms: tuple[Form, ...] = ()
    folders: tuple[Path, ...] = ()
    remotes: tuple[Remote, ...] = ()
    fallback: Fallback | None = None
    balanced: bool = True
    digests: tuple[str, str] | None = None
    channel_means: tuple[float, ...] = ()

    def load(self, folder: str | Path | None = None, *, synthetic: bool = False) -> Dataset:
        """Read the dataset and check it, or make its synthetic stand-in."""
        splits, source = self._synthetic() if synthetic else self._read(data_folder(folder))
        return Dataset(self.name, *splits, self.classes, self.mean, self.std, source)

    def sources(self, folder: Path) -> Iterator[Source]:
        """Every form of the dataset that is on the disk, the best first."""
        for base in (folder / self.name, folder, *self.folders):
            for form in self.forms:
                if form.is_in(base):
                    yield Source(form, base)

    def availability(self, folder: str | Path | None = None) -> tuple[str, str]:
        folder = data_folder(folder)
        for source in self.sources(folder):
            return "yes", str(source)
        if not self.remotes:
            return "no", self._advice(folder)
        return "half" if self._half_fetched(folder) else "no", fetch_command(self.name, folder)

    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        from rich.console import Console

        folder = data_folder(folder)
        archives = [remote.file for remote in self.remotes]
        try:
            if all(source.form.path in archives for source in self.sources(folder)):
                if not self.remotes:
                    raise UserError(f"{self.name} cannot be downloaded: {self._advice(folder)}")
                fetch_files(self.remotes, folder / self.name, self.fallback, console or Console())
            dataset = self.load(folder)
        except KeyboardInterrupt:
            command = fetch_command(self.name, folder)
            raise KeyboardInterrupt(f"stopped: `{command}` resumes") from None
        except OSError as error:
            raise disk_error(error, folder) from error
        train, test = len(dataset.train.labels), len(dataset.test.labels)
        return f"{self.name}: {train} training and {test} test images, checked: {dataset.source}"

    def _synthetic(self) -> tuple[Splits, str]:
        return stand_in.make_splits(self.name, self.classes, self.shape), "synthetic"

    def _read(self, folder: Path) -> tuple[Splits, str]:
        """Read the best form that is not a damaged cache."""
        advice, damage = self._advice(folder), None
        for source in self.sources(folder):
            try:
                splits = source.read()
                check_splits(self, splits, source.path)
            except DamagedData as error:
                damage = UserError(f"{error}: {source.remedy(error)} and {advice}")
                if not source.form.is_cache:
                    raise damage from None
            else:
                source.keep(splits)
                return splits, str(source)
        if damage:
            raise damage
        if self._half_fetched(folder):
            raise UserError(f"{self.name} in {folder} is half downloaded: {advice} to resume")
        raise UserError(f"{self.name} is not in {folder}: {advice}")

    def _advice(self, folder: Path) -> str:
        if self.remotes:
            return f"run `{fetch_command(self.name, folder)}`"
        return f"put {' or '.join(form.path for form in self.forms)} into {folder / self.name}"

    def _half_fetched(self, folder: Path) -> bool:
        """Whether a fetch was interrupted: a .part file, or some of the official files."""
        home = folder / self.name
        some = any(
            plain_or_gzipped(home / remote.file.removesuffix(".gz"))
            for remote in self.remotes
            if not remote.root
        )
        return some or any(home.glob("*.part"))
