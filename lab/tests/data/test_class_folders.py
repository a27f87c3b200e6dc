"""A user's own folders of images: layouts, splits, fingerprints, and what can be wrong."""

import os
import shutil

import pytest

from paper.layouts import photograph
from sgdf_lab.data import class_folders, dataset
from sgdf_lab.support.errors import UserError


def fill(folder, classes=("cat", "dog"), images=5):
    for label, name in enumerate(classes):
        for i in range(images):
            photograph(folder / name / f"{i}.jpg", label, 10 * label + i)
    return folder


def names(files):
    return [os.fsdecode(bytes(name)) for name in files.names]


def test_without_a_split_a_fifth_of_every_class_is_held_out(tmp_path):
    found = class_folders.read(fill(tmp_path / "photos", images=10))
    assert found.classes == ("cat", "dog")
    (test,) = found.evaluation.values()
    assert found.train.labels.tolist() == [0] * 8 + [1] * 8
    assert test.labels.tolist() == [0, 0, 1, 1]
    everything = [f"{name}/{i}.jpg" for name in ("cat", "dog") for i in range(10)]
    assert sorted([*names(found.train), *names(test)]) == everything
    assert "4 of its 20 images" in found.note
    again = class_folders.read(tmp_path / "photos")
    assert names(again.evaluation["test"]) == names(test)
    assert found.train.path(0).is_file()


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("train", "val"), {"test": "val"}),
        (("train", "test"), {"test": "test"}),
        (("train", "valid", "test"), {"test": "test", "validation": "valid"}),
        (("Train", "VAL", "Test"), {"test": "Test", "validation": "VAL"}),
    ],
)
def test_a_split_is_used_as_it_is(tmp_path, parts, expected):
    for part in parts:
        fill(tmp_path / part, images=3)
    found = class_folders.read(tmp_path)
    assert found.classes == ("cat", "dog")
    assert {name.partition("/")[0] for name in names(found.train)} == {parts[0]}
    used = {name: names(files)[0].partition("/")[0] for name, files in found.evaluation.items()}
    assert used == expected
    assert not found.note


def test_train_alone_is_split_and_beside_others_is_a_class(tmp_path):
    fill(tmp_path / "one" / "train")
    assert class_folders.read(tmp_path / "one").classes == ("cat", "dog")
    fill(tmp_path / "two", ("bus", "train"))
    assert class_folders.read(tmp_path / "two").classes == ("bus", "train")


def test_folders_in_a_class_and_hidden_files(tmp_path):
    fill(tmp_path)
    photograph(tmp_path / "cat" / "more" / "5.PNG", 0, 5)
    for hidden in ("cat/._0.jpg", "cat/.thumbs/0.jpg", ".git/x.jpg"):
        photograph(tmp_path / hidden, 0, 0)
    found = class_folders.read(tmp_path)
    all_names = [*names(found.train), *names(found.evaluation["test"])]
    assert len(all_names) == 11
    assert "cat/more/5.PNG" in all_names


def test_folders_behind_links_count_and_loops_end(tmp_path):
    fill(tmp_path / "photos", images=3)
    for i in range(5):
        photograph(tmp_path / "store" / f"{i}.jpg", 1, i)
    (tmp_path / "photos" / "cat" / "more").symlink_to(tmp_path / "store")
    (tmp_path / "store" / "loop").symlink_to(tmp_path / "store")
    found = class_folders.read(tmp_path / "photos")
    assert len(found.named_files()) == 6 + 5


@pytest.mark.parametrize(
    "parts", [("train", "val", "validation"), ("train", "Train", "test")], ids=str
)
def test_two_folders_for_one_part_are_named(tmp_path, parts):
    for part in parts:
        fill(tmp_path / part, images=2)
    with pytest.raises(UserError, match="has 2 folders for"):
        class_folders.read(tmp_path)


# --- fingerprint ----------------------------------------------------------------------------------


def fingerprint(folder):
    return dataset.fingerprint(class_folders.read(folder).named_files())


def test_a_copy_has_the_same_fingerprint_and_a_change_another(tmp_path):
    first = fingerprint(fill(tmp_path / "photos"))
    copy = shutil.copytree(tmp_path / "photos", tmp_path / "copy", copy_function=shutil.copy)
    assert fingerprint(copy) == first
    seen = {first}
    photograph(copy / "cat" / "0.jpg", 1, 99)  # other pixels under the same name
    seen.add(fingerprint(copy))
    (copy / "cat" / "1.jpg").rename(copy / "dog" / "6.jpg")
    seen.add(fingerprint(copy))
    (copy / "cat").rename(copy / "cats")
    seen.add(fingerprint(copy))
    assert len(seen) == 4


def test_the_same_images_split_otherwise_have_another_fingerprint(tmp_path):
    for part in ("train", "val"):
        fill(tmp_path / part)
    first = fingerprint(tmp_path)
    (tmp_path / "val").rename(tmp_path / "test")
    assert fingerprint(tmp_path) != first


def test_large_files_are_known_by_both_ends_and_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "WHOLE", 8)
    fill(tmp_path)
    path = tmp_path / "cat" / "0.jpg"
    contents = [b"ABCDxxxxEFGH", b"ZBCDxxxxEFGH", b"ABCDxxxxEFGZ", b"ABCDxxxxxEFGH"]
    seen = set()
    for content in contents:
        path.write_bytes(content)
        seen.add(dataset.content_digest(path))
    assert len(seen) == len(contents)


# --- what can be wrong ----------------------------------------------------------------------------


def wrong(folder):
    with pytest.raises(UserError) as error:
        class_folders.read(folder)
    return str(error.value)


def test_no_folder(tmp_path):
    assert wrong(None) == "which folder of images? Name it with --data-dir FOLDER"
    assert wrong(tmp_path / "none") == f"there is no folder {tmp_path / 'none'}"
    (tmp_path / "file").touch()
    assert wrong(tmp_path / "file") == f"there is no folder {tmp_path / 'file'}"


@pytest.mark.parametrize(
    ("classes", "more", "sentence"),
    [
        ((), ("0.jpg",), "has no folders: its images have to be in one folder per class"),
        (("cat",), (), "has images of one class only, cat: there is nothing to tell apart"),
        (("cat", "dog"), ("eel/notes.txt",), "eel has no images: files like .jpg"),
        (("cat", "dog"), ("eel/0.jpg",), "eel has a single image: a class needs two"),
    ],
)
def test_classes_that_are_too_small(tmp_path, classes, more, sentence):
    fill(tmp_path, classes)
    for name in more:
        photograph(tmp_path / name, 2, 0)
    assert sentence in wrong(tmp_path)


def test_classes_that_differ_between_the_parts(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "val", ("cat", "dog", "eel"))
    expected = f"{tmp_path / 'val' / 'eel'} is a class without images to train on"
    assert wrong(tmp_path) == expected
    shutil.rmtree(tmp_path / "val" / "eel")
    shutil.rmtree(tmp_path / "val" / "dog")
    assert wrong(tmp_path) == f"{tmp_path / 'val'} has no folder for the class dog"


def test_a_link_to_nothing(tmp_path):
    fill(tmp_path)
    (tmp_path / "cat" / "9.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(UserError, match=r"9\.jpg cannot be read: No such file"):
        fingerprint(tmp_path)


@pytest.mark.parametrize("link", ["cat/up", "cat/deep/up"])
def test_a_link_to_a_folder_above_the_class_is_refused(tmp_path, link):
    """It would put the dogs into class cat."""
    fill(tmp_path, images=4)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path)
    with pytest.raises(UserError, match=rf"{link} cannot be read"):
        class_folders.read(tmp_path)


def test_a_folder_of_two_classes_is_refused(tmp_path):
    fill(tmp_path, images=4)
    (tmp_path / "cat" / "more").symlink_to(tmp_path / "dog")
    with pytest.raises(UserError, match="dog cannot be read"):
        class_folders.read(tmp_path)


def test_a_pipe_among_the_images_is_refused(tmp_path):
    """Opening it would wait for ever."""
    fill(tmp_path, images=4)
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    files = class_folders.read(tmp_path).named_files()
    with pytest.raises(UserError, match=r"pipe\.jpg is not a regular file"):
        dataset.fingerprint(files)
