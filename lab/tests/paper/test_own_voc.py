"""Detection on other images than VOC's, in its layout, with class names in a file."""

import shutil

import pytest

from paper import made_voc
from sgdf_lab.cli.main import main
from sgdf_lab.paper.detection import voc
from sgdf_lab.reports import read_records
from sgdf_lab.runs import config as configs
from sgdf_lab.support.errors import UserError

pytest.importorskip("torchvision")
pytest.importorskip("pycocotools")
from sgdf_lab.paper.detection import trainer as detector
from tasks.processes import assert_refused

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("drone", "robot", "tall crane")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Three classes, of one year only, and a file with their names."""
    monkeypatch.setattr(made_voc, "COLOURS", dict(zip(NAMES, ("red", "lime", "blue"), strict=True)))
    devkit = made_voc.make(tmp_path / "data", train=3, test=2)
    shutil.rmtree(devkit / "VOC2012")
    (tmp_path / "names.txt").write_text("# ours\n" + "\n".join(NAMES) + "\n\n")
    monkeypatch.chdir(tmp_path)
    detector.load_dataset.cache_clear()
    yield tmp_path
    detector.load_dataset.cache_clear()


def test_labels_follow_the_file(home):
    found = voc.load(home / "data", classes=NAMES)
    assert found.classes == NAMES
    labels = {int(label) for example in (*found.train, *found.test) for label in example.labels}
    assert labels <= {1, 2, 3}
    turned = voc.load(home / "data", classes=NAMES[::-1])
    first, other = found.test[0].labels, turned.test[0].labels
    assert (first + other).tolist() == [4] * len(first)


TRAIN = ["voc", "--model", "fasterrcnn-tiny", "--set", "weights=random", "--device", "cpu",
         "--epochs", "1", "--data-dir", "data"]  # fmt: skip


def test_a_run(home, capsys):
    assert main(["train", *TRAIN, "--set", "names=names.txt"]) == 0, capsys.readouterr()
    (record,) = read_records("runs")
    assert record.config.options["names"] == list(NAMES)
    assert (record.folder / "pictures" / "detections.png").is_file()
    overrides = {"names": "names.txt", "weights": "random"}
    config = configs.make(
        "voc", model="fasterrcnn-tiny", data_dir="data", epochs=1, overrides=overrides
    )
    assert config.name == record.config.name
    annotation = next((home / "data/voc/VOCdevkit/VOC2007/Annotations").iterdir())
    annotation.write_text(annotation.read_text().replace("drone", "robot") + "\n")
    assert configs.with_data(config, home / "data").name != config.name
    with pytest.raises(UserError, match="does not hold the data of this run: it has changed"):
        detector.check(config, home / "data")


def test_the_runs_of_voc_keep_their_names():
    config = configs.make("voc")
    assert configs.with_data(config, None) == config


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("drone\nrobot\n", "there is no class 'tall crane'; there are drone, robot"),
        ("drone\ndrone\n", "names.txt has the class drone twice"),
        ("\n# none\n", "names.txt has no class names: write one per line"),
        (None, "the class names names.txt cannot be read: No such file or directory"),
    ],
)
def test_names_that_are_wrong(home, capsys, content, sentence):
    path = home / "names.txt"
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert_refused([*TRAIN, "--set", "names=names.txt"], sentence, home / "runs", capsys)


def test_names_that_are_none(home, capsys):
    for words, sentence in (
        (["--set", "names=3"], "names is a file with class names, one per line, not 3"),
        (["--data", "synthetic", "--set", "names=['a']"], "synthetic images have the classes of"),
    ):
        assert_refused([*TRAIN, *words], sentence, home / "runs", capsys)
    config = configs.make("voc", overrides={"names": "names.txt"})
    with pytest.raises(UserError, match="does not know its data: give data_dir"):
        detector.check(config, home / "data")
