"""Oxford Flowers-102. Its training and validation images are trained on together."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sgdf_lab.data.image_folders import ImageFolderDataset, Listing, check_present, class_names
from sgdf_lab.support.errors import UserError


def list_images(home: Path) -> Listing:
    """Two MATLAB files: labels from 1, and the numbers of the images of each split."""
    labels = _read_matlab(home / "imagelabels.mat", "labels")
    set_file = home / "setid.mat"
    splits = []
    for keys in (("trnid", "valid"), ("tstid",)):
        numbers = np.concatenate([_read_matlab(set_file, key) for key in keys])
        if len(numbers) and not 1 <= numbers.min() <= numbers.max() <= len(labels):
            raise UserError(
                f"{set_file} has images from {numbers.min()} to {numbers.max()}, and "
                f"imagelabels.mat has labels for {len(labels)}"
            )
        split = [(f"jpg/image_{n:05d}.jpg", int(labels[n - 1]) - 1) for n in numbers]
        check_present(home, split, set_file)
        splits.append(split)
    by_number = {int(label): str(label) for label in labels}
    return splits[0], splits[1], class_names(by_number, home / "imagelabels.mat")


def _read_matlab(path: Path, key: str) -> NDArray[np.int64]:
    from scipy.io import loadmat

    try:
        return np.asarray(loadmat(path)[key]).ravel().astype(np.int64)
    except KeyError:
        raise UserError(f"{path} has no {key}") from None
    except Exception as error:  # scipy fails in many ways on other bytes
        raise UserError(f"{path} is not a MATLAB file: {error}") from None


DATASET = ImageFolderDataset(
    name="flowers102",
    order=7,
    train=2040,
    test=6149,
    classes=102,
    parts=("jpg", "imagelabels.mat", "setid.mat"),
    layout="jpg/image_*.jpg, imagelabels.mat and setid.mat",
    origin="https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
    reader=list_images,
    other_name="flowers-102",
)
