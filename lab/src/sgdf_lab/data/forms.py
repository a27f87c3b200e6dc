"""The forms in which a dataset is published, and which of them are on the disk."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sgdf_lab.data.formats.decoded import keep_decoded
from sgdf_lab.data.formats.members import plain_or_gzipped
from sgdf_lab.data.splits import Splits
from sgdf_lab.data.verify import DamagedData


@dataclass(frozen=True)
class Form:
    """One form of a dataset: `path` is looked for in the data folder.

    Args:
        path: a folder, an archive, or with `files` the folder that holds them.
        phrase: what comes before the path in a sentence, such as "the archive".
        reader: reads the training and the test split from the path.
        files: the names of files, plain or gzipped, in a folder that may hold other things.
            All of them have to be there.
        is_cache: was decoded from another form; if damaged, that form is read instead.
        cache: the name of the file beside it that keeps the result of a slow reader.
    """

    path: str
    phrase: str
    reader: Callable[[Path], Splits]
    files: tuple[str, ...] = ()
    is_cache: bool = False
    cache: str = ""

    def is_in(self, base: Path) -> bool:
        if self.files:
            return all(plain_or_gzipped(base / self.path / name) for name in self.files)
        return (base / self.path).exists()


@dataclass(frozen=True)
class Source:
    """A form of a dataset that is on the disk."""

    form: Form
    base: Path

    @property
    def path(self) -> Path:
        return self.base / self.form.path

    def __str__(self) -> str:
        return f"{self.form.phrase} {self.path}"

    def read(self) -> Splits:
        return self.form.reader(self.path)

    def keep(self, splits: Splits) -> None:
        """Cache what took long to decode."""
        if self.form.cache:
            keep_decoded(splits, self.base / self.form.cache)

    def remedy(self, damage: DamagedData) -> str:
        """What to delete before fetching again; never a folder that may hold other things."""
        if not self.form.files:
            return f"delete {self.path}"
        return "delete it" if damage.path.is_file() else "delete those files"
