"""`sgdf train images`: a user's own images and networks, by the commands a user types."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from torch import nn

from paper.layouts import photograph
from runs.commands import folder_in
from sgdf_lab import make_config, train_runs
from sgdf_lab.reports import read_records
from sgdf_lab.runs import config as configs
from sgdf_lab.support.errors import UserError

pytest.importorskip("torchvision")
from sgdf_lab.models import own, vision
from sgdf_lab.tasks import photos as images
from sgdf_lab.training.decoded import decode
from tasks.processes import lines, typed

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SMALL = ["--device", "cpu", "--set", "size=32", "--set", "batch=8", "--epochs", "2"]
NETWORKS = """
from torch import nn

def tiny(num_classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, num_classes))

def one_channel(num_classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, num_classes))

def too_many(num_classes):
    return tiny(num_classes + 1)

def no_network(num_classes):
    return num_classes

def no_argument():
    return tiny(3)

class Pair(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.part = tiny(num_classes)
    def forward(self, x):
        return self.part(x), x

number = 3
"""


@pytest.fixture
def sgdf(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with photographs and networks; exit code, all that it said."""
    monkeypatch.chdir(tmp_path)
    for label, name in enumerate(("cat", "dog", "eel")):
        for i in range(10):
            photograph(tmp_path / "photos" / name / f"{i}.jpg", label, 10 * label + i)
    (tmp_path / "my_networks.py").write_text(NETWORKS)
    sys.modules.pop("my_networks", None)
    yield typed(capsys)
    sys.modules.pop("my_networks", None)


def train(sgdf, *words, model="my_networks:tiny", data="photos"):
    return sgdf("train", "images", "--data-dir", data, "--model", model, *SMALL, *words)


def test_a_run_on_ones_own_images_and_network(sgdf, tmp_path):
    code, said = train(sgdf, "--optimizer", "adam", "--set", "lr=0.05", "--epochs", 8)
    assert code == 0, said
    assert "photos has no split: 6 of its 30 images" in said
    folder = folder_in(tmp_path / "runs")
    first, *_, last = lines(folder)
    assert last["train_loss"] < first["train_loss"]
    assert last["test_accuracy"] > 60, "the colours tell the classes"
    assert str(tmp_path) not in sys.path, "its files would hide packages"


def test_a_run_is_named_by_its_images(sgdf, tmp_path):
    assert train(sgdf)[0] == 0
    assert train(sgdf)[0] == 0
    first = folder_in(tmp_path / "runs")  # there is one
    (tmp_path / "photos").rename(tmp_path / "moved")
    assert train(sgdf, data="moved")[0] == 0
    assert folder_in(tmp_path / "runs") == first
    photograph(tmp_path / "moved" / "cat" / "0.jpg", 1, 99)
    assert train(sgdf, data="moved")[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_the_environment_names_the_data(sgdf, tmp_path):
    assert train(sgdf)[0] == 0
    environment = json.loads((folder_in(tmp_path / "runs") / "env.json").read_text())
    config = make_config("images", model="my_networks:tiny", data_dir=tmp_path / "photos",
                         overrides={"size": 32})  # fmt: skip
    trainer = images.build_trainer(config, CPU, data_dir=tmp_path / "photos")
    assert environment["data"] == trainer.batches.fingerprint()


def test_a_config_is_for_its_own_images_alone(sgdf, tmp_path):
    config = make_config("images", model="my_networks:tiny", data_dir="photos")
    photograph(tmp_path / "photos" / "cat" / "0.jpg", 1, 99)
    with pytest.raises(UserError, match="does not hold the data of this run"):
        train_runs([config], data_dir="photos", device="cpu")
    unnamed = make_config("images", model="my_networks:tiny")
    with pytest.raises(UserError, match="does not know its data: give data_dir"):
        train_runs([unnamed], data_dir="photos", device="cpu")
    assert not (tmp_path / "runs").exists()


def test_equal_tuning_on_a_folder_with_validation_images(sgdf, tmp_path):
    """It needs no validation=N; a folder without such images does, and says so before training."""
    for part in ("train", "val", "test"):
        shutil.copytree(tmp_path / "photos", tmp_path / "parts" / part)
    (tmp_path / "tuned.toml").write_text(
        'task = "images"\nmodel = "my_networks:tiny"\nepochs = 1\ntrials = 2\nseeds = [1, 2]\n'
        '[set]\nsize = 32\n[grid]\noptimizer = ["sgd", "sgdf"]\n'
    )
    words = ["sweep", "tuned.toml", "--device", "cpu", "--jobs", "1", "--data-dir"]
    code, said = sgdf(*words, "photos")
    assert code == 1
    assert "set validation=N, since photos has no train, val and test" in said
    assert not (tmp_path / "runs").exists()
    code, said = sgdf(*words, "parts")
    assert code == 0, said
    assert len(read_records("runs")) == 8
    code, said = sgdf("evidence", "tuned.toml", "--out", "runs", "--reference", "sgd")
    assert code == 0, said
    assert "How much tuning" in said


def test_validation_images(sgdf, tmp_path):
    code, said = train(sgdf, "--set", "validation=6")
    assert code == 0, said
    (record,) = read_records("runs")
    assert record.validation is not None
    for part in ("train", "val", "test"):
        shutil.copytree(tmp_path / "photos", tmp_path / "parts" / part)
    code, said = train(sgdf, data="parts")
    assert code == 0, said
    assert "has no split" not in said
    assert all(r.validation is not None for r in read_records("runs"))
    assert "parts has validation images" in train(sgdf, "--set", "validation=6", data="parts")[1]


def test_an_image_with_damaged_exif_is_trained_on(sgdf, tmp_path):
    picture = Image.effect_noise((32, 32), 80).convert("RGB")
    picture.save(tmp_path / "photos" / "cat" / "odd.jpg", exif=b"Exif\0\0garbage!")
    code, said = train(sgdf)
    assert code == 0, said


@pytest.mark.parametrize("size", [(1, 3000), (3000, 1), (40, 30), (90, 30)])
def test_a_thin_image_is_not_enlarged_as_a_whole(size):
    picture = images.middle(Image.new("RGB", size))
    assert max(picture.size) <= 2 * min(picture.size)
    assert min(picture.size) == min(size)


def test_a_single_image_that_cannot_be_normalised_is_explained(sgdf):
    code, said = train(sgdf, "--set", "accumulate=8", "--model", "resnet18")
    assert code == 1
    assert "resnet18 normalises over a batch, and here a batch of 8 leaves a single" in said


def test_augmentation():
    picture = Image.effect_noise((32, 48), 80).convert("RGB")
    views = {}
    for augment in images.AUGMENTATIONS:
        config = configs.make("images", overrides={"augment": augment, "size": 16})
        for_training, for_evaluation = images.image_transforms(config)
        assert for_training(picture).size == for_evaluation(picture).size == (16, 16)
        views[augment] = {for_training(picture).tobytes() for _ in range(20)}
    assert len(views["crop"]) > 2
    assert len(views["flip"]) == 2
    assert len(views["none"]) == 1


@pytest.mark.parametrize("augment", images.AUGMENTATIONS)
def test_a_photograph_is_turned_as_its_camera_says(tmp_path, augment):
    """The upper half is white; the camera was turned, and saved it as the left half."""
    picture = Image.new("RGB", (32, 32))
    picture.paste("white", (0, 0, 16, 32))
    said = picture.getexif()
    said[ExifTags.Base.Orientation] = 6
    picture.save(tmp_path / "turned.jpg", exif=said)
    config = configs.make("images", overrides={"augment": augment, "size": 32})
    for transform in images.image_transforms(config):
        seen = np.asarray(transform(decode(tmp_path / "turned.jpg"))).astype(int)
        rows = seen.mean(axis=(1, 2))
        assert abs(seen - rows[:, None, None]).max() < 60  # a row has one colour
        assert augment == "crop" or rows[0] > 200 > 50 > rows[-1]


# --- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet-tiny", 32),
        ("squeezenet1_1", 32),
        ("mobilenet_v3_small", 32),
        ("shufflenet_v2_x0_5", 32),
        ("vit-tiny", 64),
    ],
)
def test_networks_of_torchvision(name, size):
    model = vision.build_any_model(name, classes=5, size=size)
    assert model.training
    assert model(torch.zeros(2, 3, size, size)).shape == (2, 5)


def test_networks_of_torchvision_that_need_more():
    assert vision.needs_of("vit_b_16", 96) == {"image_size": 96}
    assert vision.needs_of("maxvit_t", 96) == {"input_size": (96, 96)}
    with torch.device("meta"):
        for name in ("googlenet", "inception_v3"):
            arguments = {**vision.needs_of(name, 96), "init_weights": False}
            model = vision.models.get_model(name, num_classes=5, **arguments)
            assert isinstance(model(torch.zeros(2, 3, 96, 96)), torch.Tensor)


def test_ones_own_network_on_a_task_of_the_lab(sgdf, tmp_path):
    (tmp_path / "grey.py").write_text(
        "from torch import nn\n"
        "def net(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    code, said = sgdf("train", "digits", "--data", "synthetic", "--model", "grey:net",
                      "--epochs", 2, "--device", "cpu")  # fmt: skip
    assert code == 0, said
    assert folder_in(tmp_path / "runs").name.startswith("digits-grey_net-sgdf-s0-")
    code, said = sgdf("train", "voc", "--model", "grey:net")
    assert "there is no model 'grey:net'" in said


def test_the_check_of_a_network_changes_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(), nn.Flatten(), nn.Linear(12, 2))
    model[1].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    drawn = torch.get_rng_state()
    own.check_outputs("net", model, classes=2, shape=(3, 2, 2))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [m.training for m in model] == [True, False, True, True]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


# --- what can be wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("my_networks:tny", "there is no model in my_networks 'tny': did you mean tiny?"),
        ("my_networks:number", "there is no model in my_networks 'number'"),
        ("my_networks:", "there is no model in my_networks ''"),
        ("no_such_module:net", "the model 'no_such_module:net' cannot be loaded (No module named"),
        ("my_networks:too_many", "returns 2 x 4 outputs for 2 images, not 2 x 3"),
        ("my_networks:no_network", "a value of type int, not a torch.nn.Module"),
        ("my_networks:no_argument", "cannot be called with num_classes=3: no_argument() got an un"),
        ("my_networks:one_channel", "my_networks:one_channel fails on images of 3x32x32: "),
        ("my_networks:Pair", "Pair returns a value of type tuple, not a tensor of logits"),
        ("resnet81", "there is no model 'resnet81': did you mean resnet18"),
        ("alexnet", "alexnet fails on images of 3x32x32"),
        ("vit_b_16", ""),
    ],
)
def test_networks_that_do_not_fit(sgdf, tmp_path, model, sentence):
    size = ["--set", "size=33"] if model == "vit_b_16" else []
    sentence = sentence or "vit_b_16 cannot be built for images of 33x33 pixels"
    code, said = train(sgdf, *size, model=model)
    assert code == 1
    assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "runs").exists()


def test_an_image_that_cannot_be_read(sgdf, tmp_path):
    (tmp_path / "photos" / "cat" / "0.jpg").write_text("no image")
    code, said = train(sgdf)
    assert code == 1
    assert "photos/cat/0.jpg is not a complete image (it is none of JPEG, PNG" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "size=0"], "size is an integer of at least 1, not 0"),
        (["--set", "augment=crops"], "there is no augmentation 'crops': did you mean crop?"),
        (["--data", "synthetic"], "there is no synthetic stand-in for images of your own"),
        (["--data-dir", "none"], "there is no folder none"),
    ],
)
def test_options_that_are_wrong(sgdf, tmp_path, words, sentence):
    code, said = train(sgdf, *words)
    assert code == 1
    assert sentence in said
    assert not (tmp_path / "runs").exists()
