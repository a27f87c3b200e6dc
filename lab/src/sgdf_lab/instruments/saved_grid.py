"""A grid of values that is saved row by row, so that an interrupted measurement resumes."""

import hashlib
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgdf_lab.instruments.evaluation import Array
from sgdf_lab.support.files import replacing


class SavedGrid:
    """Values on a grid, and which rows are done. With a file, every finished row is saved."""

    def __init__(self, shape: tuple[int, ...], file: Path | None) -> None:
        self.values = np.full(shape, np.nan)
        self.done = np.zeros(shape[0], dtype=bool)
        self.file = file
        self.about: dict[str, Any] = {}

    def resume(self, fingerprint: dict[str, Any], centre: float) -> None:
        """Take the rows that the file has, if it is a file of the same surface."""
        assert self.file
        self.about = {**fingerprint, "centre": centre}
        if not self.file.exists():
            self.file.parent.mkdir(parents=True, exist_ok=True)
            return
        try:
            with np.load(self.file) as saved:
                about = json.loads(str(saved["about"]))
                values, done = saved["values"], saved["done"]
                other = [name for name in fingerprint if about[name] != fingerprint[name]]
                # Another loss function shows at the centre. Devices round differently.
                if not np.isclose(about["centre"], centre, rtol=1e-4):
                    other.append("loss")
        except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{self.file} cannot be read as a surface ({error}): move it away"
            ) from None
        if other:
            raise ValueError(
                f"{self.file} is a surface of other settings ({', '.join(other)}): save this one "
                "elsewhere, or move that one away"
            )
        self.values, self.done = values, done

    def finish(self, row: int, values: Array) -> None:
        self.values[row] = values.reshape(self.values.shape[1:])
        self.done[row] = True
        if self.file:
            about = np.array(json.dumps(self.about))
            with replacing(self.file) as file:
                np.savez(file, values=self.values, done=self.done, about=about)


def digest(tensors: Iterable[Tensor]) -> str:
    """A hash of dtypes, shapes and values."""
    total = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        total.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        total.update(plain.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()[:16]
