"""Official layouts, read as they are, and every way in which they can be wrong."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import loadmat, savemat

from paper import layouts
from sgdf_lab import data
from sgdf_lab.support.errors import UserError

EXPECTED = {
    "imagenet": (layouts.SYNSETS, "train/n01443537/n01443537_0.JPEG"),
    "pets": (layouts.BREEDS, "images/american_bulldog_1.jpg"),
    "flowers102": (("1", "2", "3"), "jpg/image_00013.jpg"),
    "food101": (layouts.DISHES, "images/baby_back_ribs/1000.jpg"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for name, make in layouts.MAKE.items():
        make(root / name)
    return root


@pytest.fixture
def spoilt(made, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(made, tmp_path / "data"))


@pytest.mark.parametrize("name", layouts.MAKE)
def test_layouts(made, name):
    dataset = data.find(name).load(made, classes=3)
    classes, first_of_second = EXPECTED[name]
    assert dataset.classes == classes
    assert (len(dataset.train), len(dataset.test)) == (24, 12)
    for files in (dataset.train, dataset.test):
        paths = [files.path(i) for i in range(len(files))]
        assert all(path.is_file() for path in paths)
        assert len(set(paths)) == len(files)
        assert np.bincount(files.labels).tolist() == [len(files) // 3] * 3
    train = dataset.train
    index = [train.path(i) for i in range(24)].index(made / name / first_of_second)
    assert train.labels[index] == 1
    some = train.only(np.array([index, 0]))
    assert some.path(0) == train.path(index)
    assert some.labels.tolist() == [1, train.labels[0]]


def test_every_kind_of_image_in_a_class_folder_counts(spoilt):
    folder = spoilt / "imagenet/train/n01443537"
    with Image.open(folder / "n01443537_0.JPEG") as image:
        for ending in ("png", "bmp", "tif", "WEBP"):
            image.save(folder / f"another.{ending}")
    (folder / "notes.txt").write_text("no image")
    found = data.find("imagenet").load(spoilt, 3).train
    assert len(found) == 24 + 4
    names = {found.path(i).name for i in range(len(found))}
    assert {"another.png", "another.bmp", "another.tif", "another.WEBP"} < names


@pytest.mark.parametrize(
    ("name", "official"),
    [("pets", "oxford-iiit-pet"), ("flowers102", "flowers-102"), ("food101", "food-101")],
)
def test_where_it_may_be(made, tmp_path, name, official):
    assert data.find(name).home(made) == made / name
    assert data.find(name).home(made / name) == made / name
    assert data.find(name).home(tmp_path) is None
    shutil.copytree(made / name, tmp_path / official)
    assert data.find(name).home(tmp_path) == tmp_path / official
    assert len(data.find(name).load(tmp_path, classes=3).test) == 12


@pytest.mark.parametrize("name", layouts.MAKE)
def test_the_number_of_classes_and_of_images(made, name):
    """Those of the real dataset, unless another number of classes is asked for."""
    spec = data.find(name)
    sentence = f"{made / name} has 3 classes, and {name} has {spec.classes}: --set cl"
    with pytest.raises(UserError, match=re.escape(sentence)):
        spec.load(made)
    with pytest.raises(UserError, match="has 3 classes, and 4 were asked for"):
        spec.load(made, classes=4)
    complete = dataclasses.replace(spec, classes=3, train=24, test=12)
    assert len(complete.load(made).train) == 24
    with pytest.raises(UserError, match=rf"{name} has 12 test images, and .+ has 13"):
        dataclasses.replace(complete, test=13).load(made)


def remove(*paths):
    def change(root):
        for path in paths:
            shutil.rmtree(root / path) if (root / path).is_dir() else (root / path).unlink()

    return change


def write(path, text):
    return lambda root: (root / path).write_bytes(
        text if isinstance(text, bytes) else text.encode()
    )


def rename(old, new):
    return lambda root: (root / old).rename(root / new)


def link(path, target):
    return lambda root: (root / path).symlink_to(root / target)


def flat_val(root):
    """As the archive of ImageNet's validation images unpacks."""
    for path in list((root / "imagenet/val").glob("*/*.JPEG")):
        path.rename(root / "imagenet/val" / path.name)
    for folder in list((root / "imagenet/val").iterdir()):
        if folder.is_dir():
            folder.rmdir()


def without_key(root):
    path = root / "flowers102/setid.mat"
    savemat(path, {"trnid": loadmat(path)["trnid"]})


def too_many(root):
    path = root / "flowers102/setid.mat"
    found = loadmat(path)
    savemat(path, {k: found[k] for k in ("trnid", "valid")} | {"tstid": np.array([[3, 37]])})


VAL, OTHER = "imagenet/val/n01443537", "imagenet/val/n01440764"
PETS, FLOWERS = "pets/annotations/test.txt", "flowers102/setid.mat"
DISHES = "apple_pie\nwaffles\npizza\n"
MISTAKES = [
    ("imagenet", remove("imagenet/val"), r"imagenet has no val: get it from https://image-net"),
    ("imagenet", remove(VAL), "imagenet/val has no folder for the class n01443537"),
    ("imagenet", rename(VAL, "imagenet/val/n9"), "val/n9 is a class without images to train on"),
    ("imagenet", flat_val, "imagenet/val has no folder for the class n0"),
    ("imagenet", lambda root: [p.unlink() for p in (root / VAL).iterdir()], "n01443537 has no im"),
    ("imagenet", link(VAL + "/up", "imagenet/val"), "val/n01443537/up cannot be read"),
    ("imagenet", link(VAL + "/more", OTHER), "more cannot be read: .+ also a part of"),
    ("pets", remove(PETS), r"pets has no annotations/test\.txt: get it from"),
    ("pets", remove("pets/images/Bengal_3.jpg"), r"Bengal_3\.jpg does not .+trainval\.txt"),
    ("pets", write(PETS, "# head\n\nBengal_9 zero\n"), r"test\.txt has no .+ in line 3"),
    ("pets", write(PETS, "Bengal_9 1 1 1\n"), r"Bengal_9 the class 1 in line 1, .+ Abyssinian"),
    ("pets", write(PETS, "Bengal_9 3 1 1\n"), r"no test images of the class Abyssinian"),
    ("pets", write(PETS, b"\xff\xfe"), r"pets cannot be read: .+utf-8"),
    ("flowers102", remove(FLOWERS), r"flowers102 has no setid\.mat: get it from"),
    ("flowers102", remove("flowers102/jpg/image_00036.jpg"), r"00036\.jpg does not .+setid"),
    ("flowers102", without_key, r"setid\.mat has no valid"),
    ("flowers102", too_many, r"setid\.mat has images from 3 to 37, and imagelabels.+for 36"),
    ("flowers102", write(FLOWERS, b"no MATLAB"), r"setid\.mat is not a MATL"),
    ("food101", remove("food101/meta"), r"food101 has no meta/train\.txt: get it from .+food-101"),
    ("food101", remove("food101/images/waffles/1001.jpg"), r"1001\.jpg does not .+meta lists"),
    ("food101", remove("food101/images/waffles"), r"waffles/1000\.jpg does not .+meta lists"),
    ("food101", write("food101/meta/classes.txt", DISHES), r"whose class is not in classes\.txt"),
]


@pytest.mark.parametrize(("name", "change", "sentence"), MISTAKES)
def test_mistakes_are_named(spoilt, name, change, sentence):
    change(spoilt)
    with pytest.raises(UserError, match=sentence) as raised:
        data.find(name).load(spoilt, classes=3)
    assert "\n" not in str(raised.value)


def test_data_that_is_not_there(tmp_path):
    sentence = (
        f"pets is not in {tmp_path}: get it from https://www.robots.ox.ac.uk/~vgg/data/pets "
        f"(images and annotations.tar.gz), and unpack it so that {tmp_path}/pets holds images/*.jpg"
    )
    with pytest.raises(UserError, match=re.escape(sentence)):
        data.find("pets").load(tmp_path)
    with pytest.raises(UserError, match="did you mean pets"):
        data.find("pet").load(tmp_path)
