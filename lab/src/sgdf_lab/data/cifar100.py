"""CIFAR-100 with its 100 fine labels."""

from pathlib import Path

from sgdf_lab.data.arrays import ArrayDataset
from sgdf_lab.data.fetch import Remote
from sgdf_lab.data.formats.cifar import MEAN, SERVER, STD, read_binary, read_pickles
from sgdf_lab.data.forms import Form
from sgdf_lab.data.splits import Splits


def read_python_batches(path: Path) -> Splits:
    return read_pickles(path, ("train", "test"), "fine_labels")


def read_binary_batches(path: Path) -> Splits:
    """Two labels per record: the coarse one, then the fine one."""
    return read_binary(path, ("train.bin", "test.bin"), label_bytes=2)


DATASET = ArrayDataset(
    name="cifar100",
    order=4,
    train=50000,
    test=10000,
    classes=100,
    shape=(3, 32, 32),
    mean=MEAN,
    std=STD,
    channel_means=(0.5071, 0.4865, 0.4409),
    forms=(
        Form("cifar-100-python", "the python batches in", read_python_batches),
        Form("cifar-100-binary", "the binary batches in", read_binary_batches),
        Form("cifar-100-python.tar.gz", "the archive", read_python_batches),
        Form("cifar-100-binary.tar.gz", "the archive", read_binary_batches),
    ),
    remotes=(
        Remote(
            f"{SERVER}/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
        ),
    ),
)
