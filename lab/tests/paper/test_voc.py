"""PASCAL VOC as officially unpacked: what is read, and the errors for what is damaged."""

import io
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("PIL")
from PIL import Image

from paper import made_voc
from sgdf_lab.paper.detection import voc
from sgdf_lab.support.errors import UserError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three training images, of which the second has only a difficult object, and a test image."""
    devkit = tmp_path / "voc" / "VOCdevkit"
    whole, tail = (1, 1, 64, 48), (60, 41.5, 64, 48)
    made_voc.add(devkit / "VOC2007", "trainval", "000005", [("person", whole, False)])
    made_voc.add(devkit / "VOC2007", "trainval", "000007", [("dog", whole, True)])
    made_voc.add(
        devkit / "VOC2012",
        "trainval",
        "2008_000002",
        [("cat", tail, False), ("dog", (7, 7, 7, 7), True)],
    )
    made_voc.add(devkit / "VOC2007", "test", "000001", [("dog", whole, True)])
    return tmp_path


@pytest.fixture
def root(data: Path) -> Path:
    return data / "voc" / "VOCdevkit" / "VOC2007"


def test_both_years_are_read(data):
    found = voc.load(data, official=False)
    person, pets = found.train
    assert [person.path.stem, pets.path.stem] == ["000005", "2008_000002"]
    assert found.left_out == 1
    assert [example.path.stem for example in found.test] == ["000001"]
    assert found.test[0].difficult.tolist() == [True]
    assert person.labels.tolist() == [15], "the box of a head is no object"
    assert person.boxes.tolist() == [[0, 0, 64, 48]], "from the first pixel to after the last"
    assert pets.labels.tolist() == [8, 12]
    assert pets.boxes.tolist() == [[59, 40.5, 64, 48], [6, 6, 7, 7]]
    assert pets.difficult.tolist() == [False, True]


def test_boxes_are_where_the_colours_are(data):
    example = voc.load(data, official=False).train[1]
    pixels = example.pixels()
    assert pixels.shape == (3, 48, 64)
    assert pixels.dtype == torch.uint8
    red = (pixels[0] > 200) & (pixels[1] < 60)
    ys, xs = red.nonzero(as_tuple=True)
    left, top, right, bottom = example.boxes[0].round().tolist()
    assert (xs.min(), xs.max() + 1, ys.max() + 1) == (left, right, bottom)
    assert abs(int(ys.min()) - top) <= 1


def test_the_devkit_may_be_in_the_data_folder_itself(data):
    (data / "voc" / "VOCdevkit").rename(data / "VOCdevkit")
    assert len(voc.load(data, official=False).train) == 2


def test_twenty_classes_in_the_order_of_their_names():
    assert len(voc.CLASSES) == 20
    assert list(voc.CLASSES) == sorted(voc.CLASSES)
    assert voc.CLASSES[0] == "aeroplane"


def test_a_grey_jpeg_has_three_channels(data, root):
    Image.new("L", (64, 48), 128).save(root / "JPEGImages" / "000005.jpg")
    assert voc.load(data, official=False).train[0].pixels().shape == (3, 48, 64)


def test_one_pixel_outside_is_tolerated(data, root):
    change(root, "<xmin>1<", "<xmin>0<")
    change(root, "<ymax>48<", "<ymax>49<")
    assert voc.load(data, official=False).train[0].boxes.tolist() == [[0, 0, 64, 48]]


# --- what is wrong --------------------------------------------------------------------------------


def change(root: Path, old: str, new: str) -> None:
    path = root / "Annotations" / "000005.xml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def complaint(data: Path) -> str:
    with pytest.raises(UserError) as error:
        _ = [example.pixels() for example in voc.load(data, official=False).train]
    return str(error.value)


def test_nothing_is_there(tmp_path):
    said = complaint(tmp_path)
    assert f"there is no {tmp_path}/voc/VOCdevkit: unpack VOCtrainval_06-Nov-2007.tar" in said


@pytest.mark.parametrize(
    "lost",
    [
        "VOC2007/ImageSets/Main/test.txt",
        "VOC2012/ImageSets/Main/trainval.txt",
        "VOC2007/JPEGImages/000005.jpg",
        "VOC2012/Annotations/2008_000002.xml",
    ],
)
def test_a_file_that_is_not_there_is_named(lost, data):
    path = data / "voc" / "VOCdevkit" / lost
    path.unlink()
    assert f"there is no {path}" in complaint(data)


def test_a_list_of_another_length_is_named(data, root, monkeypatch):
    with pytest.raises(UserError, match=r"trainval.txt lists 2 images, not the official 5011"):
        voc.load(data)
    monkeypatch.setattr(voc, "OFFICIAL", dict(zip(voc.OFFICIAL, (2, 1, 1), strict=True)))
    assert len(voc.load(data).train) == 2
    (root / "ImageSets" / "Main" / "test.txt").write_text("000001\n000001\n")
    with pytest.raises(UserError, match=r"VOC2007/.+/test.txt lists 2 images, not the official 1"):
        voc.load(data)


LAUGHS = '<!DOCTYPE a [<!ENTITY b "{}"><!ENTITY c "{}">]>'.format("x" * 100, "&b;" * 100)
FILE = '<!DOCTYPE a [<!ENTITY c SYSTEM "file:///etc/hostname">]>'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("</annotation>", "", r"cannot be read: no element found: .+: unpack it again"),
        ("<annotation>", "\0", "cannot be read: not well-formed"),
        ("<annotation>", f"{LAUGHS}<annotation>&c;", "it declares a document type"),
        ("<annotation>", f"{FILE}<annotation>&c;", "it declares a document type"),
        ("<annotation>", '<?xml version="1.0" encoding="odd"?><annotation>', "unknown encoding"),
        ("<name>person<", "<name>persom<", "no class of VOC 'persom': did you mean person?"),
        ("<name>person</name>", "", "no class of VOC ''"),
        ("<xmin>1<", "<xmin>one<", "the box of a person is not four numbers"),
        ("<xmin>1<", "<xmin>nan<", "empty or not inside the image of 64x48 pixels"),
        ("<xmin>1<", "<xmin>65<", "empty or not inside"),
        ("<xmax>64<", "<xmax>66<", "1, 1, 66, 48, is empty or not inside"),
        ("<xmax>64<", "<xmax>inf<", "empty or not inside"),
        ("<ymin>1<", "<ymin>-1<", "empty or not inside"),
        ("<ymax>48<", "<ymax>0<", "empty or not inside"),
        ("<bndbox>", "<box>", "cannot be read: mismatched tag"),
    ],
)
def test_a_wrong_annotation_is_named(old, new, words, data, root):
    change(root, old, new)
    said = complaint(data)
    assert str(root / "Annotations" / "000005.xml") in said
    assert re.search(words, said), said


IMAGE = "JPEGImages/000005.jpg"
TRAIN, TEST = (f"ImageSets/Main/{part}.txt" for part in ("trainval", "test"))


def as_png(content):
    file = io.BytesIO()
    Image.new("RGB", (64, 48)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        # Without a header when a run starts, truncated in the middle when the image is needed.
        (IMAGE, lambda content: b"", "cannot be read: "),
        (IMAGE, lambda content: content[:10], "cannot be read: "),
        (IMAGE, lambda content: content[: len(content) // 2], "cannot be read: "),
        (IMAGE, as_png, "cannot be read: "),
        ("Annotations/000005.xml", lambda content: b"<html/>", "is not an annotation of VOC: it"),
        (TEST, lambda content: b"\xff\xfe", "cannot be read"),
        (TEST, lambda content: b"\n", "has no images"),
        # A list cannot lead elsewhere.
        (TRAIN, lambda content: b"000005\n../secret\n", "'../secret', which"),
        (TRAIN, lambda content: b"/etc/passwd\n", "'/etc/passwd', which"),
        (TRAIN, lambda content: b"a.b\n", "lists 'a.b', which is not the name"),
    ],
)
def test_a_wrong_file_is_named(name, change, words, data, root):
    path = root / name
    path.write_bytes(change(path.read_bytes()))
    said = complaint(data)
    assert str(path) in said
    assert words in said


def test_no_image_to_train_on(data, root):
    (root / "ImageSets" / "Main" / "trainval.txt").write_text("000007\n")
    (root.parent / "VOC2012" / "ImageSets" / "Main" / "trainval.txt").write_text("")
    assert "has an object to train on" in complaint(data)
