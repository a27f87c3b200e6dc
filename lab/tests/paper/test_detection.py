"""Detection: average precision on cases worked out by hand, weights, and the command line on a
small dataset in the official layout."""

import os
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")
pytest.importorskip("torchmetrics")
pytest.importorskip("pycocotools")
from PIL import Image

from paper import made_voc
from sgdf_lab.cli.main import main
from sgdf_lab.paper.detection import detections as found_in
from sgdf_lab.paper.detection import faster_rcnn as detectors
from sgdf_lab.paper.detection import trainer as detector
from sgdf_lab.paper.detection import voc
from sgdf_lab.paper.detection.detections import Detections
from sgdf_lab.paper.detection.voc import Example
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.results import published_value
from sgdf_lab.training.distributed import Team
from tasks.processes import (
    assert_refused,
    assert_resumes,
    lines,
    run_epoch,
    trained,
    two_and_one,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TINY = ("--model", "fasterrcnn-tiny", "--set", "weights=random")
ANY = ("--device", "cpu", "--set", "lists=any")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    made_voc.make(folder)
    return folder


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))


# --- average precision --------------------------------------------------------------------------


def example(boxes: list[list[float]], labels: list[int], difficult: list[bool] | None = None):
    return Example(
        Path("none"),
        (100, 100),
        torch.tensor(boxes).reshape(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(difficult or [False] * len(labels), dtype=torch.bool),
    )


def detections(boxes: list[list[float]], labels: list[int], scores: list[float]) -> Detections:
    return Detections(
        torch.tensor(boxes).reshape(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        torch.tensor(scores),
    )


A, B, C = [0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0], [50.0, 50.0, 60.0, 60.0]
NOTHING = detections([], [], [])


HALF, LESS, NEAR = [0.0, 0.0, 10.0, 5.0], [0.0, 0.0, 10.0, 4.9], [0.0, 0.0, 10.0, 9.0]
ROW = [[20.0 * i, 0.0, 20.0 * i + 10, 10.0] for i in range(10)]
TWO, ONE_EACH = [example([A, B], [1, 1])], [example([A], [1]), example([B], [1])]
HARD = [example([A, B], [1, 1], [False, True])]
TWO_THIRDS = 100 * (6 * 1 + 5 * 2 / 3) / 11  # precision 1 up to a recall of half, then 2 / 3
#: Images, what was found, and the precision by VOC's rule; None: COCO's at IoU 0.5 is not the same.
CASES = {
    "perfect": (
        [example([A, B], [1, 2]), example([C], [1])],
        [detections([B, A], [2, 1], [0.3, 0.9]), detections([C], [1], [0.2])], 100, 100,
    ),
    "nothing": (ONE_EACH, [NOTHING, NOTHING], 0, 0),
    "right, wrong, right": (
        ONE_EACH, [detections([A, C], [1, 1], [0.9, 0.8]), detections([B], [1], [0.7])],
        TWO_THIRDS, None,
    ),
    "scores are compared between images: wrong, right, right": (
        ONE_EACH, [detections([A], [1], [0.6]), detections([B, C], [1, 1], [0.7, 0.8])],
        100 * 2 / 3, None,
    ),
    "an object is found once, though the second fits better and counts for no other": (
        TWO, [detections([NEAR, A, B], [1, 1, 1], [0.9, 0.8, 0.7])], TWO_THIRDS, None,
    ),
    "half of it": ([example([A], [1])], [detections([HALF], [1], [0.9])], 100, None),
    "less than half": ([example([A], [1])], [detections([LESS], [1], [0.9])], 0, None),
    "difficult ones count for nothing": (
        HARD, [detections([A, B, B], [1, 1, 1], [0.5, 0.9, 0.8])], 100, 100,
    ),
    "nor against": (HARD, [detections([A], [1], [0.5])], 100, 100),
    "what is wrong beside them does": (HARD, [detections([A, C], [1, 1], [0.5, 0.9])], 50, 50),
    "class 1 is found, 2 is not, 3 does not occur, 4 is difficult": (
        [example([A, B, C], [1, 2, 4], [False, False, True])],
        [detections([A, C, C], [1, 3, 4], [0.9, 0.9, 0.9])], 50, 50,
    ),
    "nothing, of nothing": ([example([], [])], [NOTHING], 0, 0),
    "something, of nothing": ([example([], [])], [detections([A], [1], [0.9])], 0, 0),
    "something, of what is difficult": (
        [example([A], [1], [True])], [detections([A], [1], [0.9])], 0, 0,
    ),
    "three of ten reach a recall of 0.3, though 3 / 10 is not 0.1 * 3 to a computer": (
        [example(ROW, [1] * 10)], [detections(ROW[:3], [1] * 3, [0.9, 0.8, 0.7])],
        100 * 4 / 11, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_average_precision(case):
    pictures, found, voc2007, coco = CASES[case]
    assert found_in.voc2007(found, pictures) == pytest.approx(voc2007)
    assert coco is None or found_in.coco(found, pictures)["ap50"] == pytest.approx(coco)


# --- images to train on ---------------------------------------------------------------------------


def test_boxes_are_mirrored_with_their_image(data):
    for given in voc.load(data, official=False).train:
        pixels, boxes, labels = detector.training_view(given, flip=True)
        assert len(boxes) == len(labels) == (~given.difficult).sum()
        plain, plain_boxes, _ = detector.training_view(given, flip=False)
        for (left, top, right, bottom), (l0, t0, r0, b0) in zip(
            boxes.int().tolist(), plain_boxes.int().tolist(), strict=True
        ):
            cut = pixels[:, top:bottom, left:right]
            assert torch.equal(cut.flip(2), plain[:, t0:b0, l0:r0])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_processes_share_the_images_of_one(data, size):
    """With any number of processes, an image has the same position and the same flip."""
    config = tiny_config(batch=4)
    examples = voc.load(data, official=False).train
    seen = {}
    for rank in range(size):
        stream = detector.DetectionBatches(examples, CPU, config=config, team=Team(rank, size))
        stream.begin(3)
        for place in stream.places():
            (image,), (target,) = stream.take(torch.tensor(place), 1)
            seen[place] = image.sum().item(), target["boxes"].tolist()
    alone = detector.DetectionBatches(examples, CPU, config=config, team=Team())
    alone.begin(3)
    images, targets = alone.take(alone.position, len(examples))
    assert [seen[i] for i in range(len(examples))] == [
        (image.sum().item(), target["boxes"].tolist())
        for image, target in zip(images, targets, strict=True)
    ]


def test_the_order_differs_between_epochs_and_seeds(data):
    def order(seed: int, epoch: int) -> list[float]:
        config = tiny_config(seed=seed)
        stream = detector.DetectionBatches(
            voc.load(data, official=False).train, CPU, config=config, team=Team()
        )
        stream.begin(epoch)
        images, _ = stream.take(stream.position, len(stream))
        return [image.sum().item() for image in images]

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def tiny_config(seed: int = 0, **overrides) -> configs.Config:
    overrides = {"weights": "random", "lists": "any", **overrides}
    return configs.make("voc", model="fasterrcnn-tiny", seed=seed, overrides=overrides)


# --- the model ------------------------------------------------------------------------------------


def test_the_loss_is_torchvisions_four_as_a_mean_per_image(data):
    """And every step samples proposals of its own."""
    trainer = detector.build_trainer(tiny_config(batch=3), CPU, data_dir=data)
    trainer.model.train()
    trainer.batches.begin(0)
    mine = [trainer._loss(torch.tensor(place), 3)[0] for place in (0, 3)]
    trainer.batches.begin(0)
    for place, loss in zip((0, 3), mine, strict=True):
        images, targets = trainer.batches.take(torch.tensor(place), 3)
        torch.manual_seed(detector.seed_for("proposals", 0, 0) + place)
        losses = trainer.model(images, targets)
        assert set(losses) == {
            *("loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg")
        }
        torch.testing.assert_close(loss, 3 * sum(losses.values()))


def coco_like(path: Path) -> dict[str, torch.Tensor]:
    """A weights file as torchvision's: 91 classes, batch norms that are not the identity."""
    torch.manual_seed(1)
    model = detectors.fasterrcnn_tiny(frozen=True)
    model.roi_heads.box_predictor = detectors.FastRCNNPredictor(64, 91)
    state = model.state_dict()
    for key, value in state.items():
        if "running_var" in key:
            value.uniform_(0.5, 2)
    torch.save(state, path)
    return state


def test_weights_for_other_classes_get_new_last_layers(tmp_path):
    state = coco_like(tmp_path / "coco.pth")
    model = detectors.build_detector("fasterrcnn-tiny", classes=20, file=tmp_path / "coco.pth")
    assert model.roi_heads.box_predictor.cls_score.out_features == 21
    own = model.state_dict()
    kept = [key for key in state if not key.startswith("roi_heads.box_predictor")]
    assert len(kept) == len(state) - 4
    for key in kept:
        assert torch.equal(own[key], state[key]), key


def test_batch_norms_with_weights_are_frozen(data, tmp_path):
    coco_like(tmp_path / "coco.pth")
    config = tiny_config(weights=str(tmp_path / "coco.pth"))
    trainer = detector.build_trainer(config, CPU, data_dir=data)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    run_epoch(trainer)
    moved = {k for k, v in trainer.model.state_dict().items() if not torch.equal(v, before[k])}
    assert "backbone.body.stage0.0.weight" in moved
    norms = {key for key in before if re.match(r"backbone\.body\.stage\d\.1\.", key)}
    assert len(norms) == 12
    assert not norms & moved


def test_the_published_network_is_torchvisions():
    """Its weights fit: the same names and shapes, the same layers trained."""
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    with torch.device("meta"):
        theirs = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None)
        ours = detectors.fasterrcnn(frozen=True)
    expected = {k: v.shape for k, v in theirs.state_dict().items() if "num_batches" not in k}
    shapes = {k: v.shape for k, v in ours.state_dict().items()}
    differ = {key for key in expected if shapes.get(key) != expected[key]}
    assert shapes.keys() == expected.keys()
    assert all(key.startswith("roi_heads.box_predictor") for key in differ)
    fixed = {key for key, value in ours.named_parameters() if not value.requires_grad}
    assert all(key.startswith(("backbone.body.conv1", "backbone.body.layer1")) for key in fixed)
    assert len(fixed) == 11
    eps = {m.eps for m in ours.modules() if isinstance(m, detectors.FrozenBatchNorm2d)}
    assert eps == {0.0}


def spoilt(path: Path, key: str, value: torch.Tensor | None) -> None:
    state = coco_like(path)
    state.pop(key, None)
    if value is not None:
        state[key] = value
    torch.save(state, path)


FIRST = "backbone.body.stage0.0.weight"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no weights file {path}"),
        (lambda path: path.write_bytes(b"weights"), "{path} is not a weights file: "),
        (
            lambda path: torch.save({"model": {FIRST: 1}}, path),
            f'copying the parameter named "{FIRST}"',
        ),
        (lambda path: spoilt(path, FIRST, None), f"it has no {FIRST}"),
        (lambda path: spoilt(path, FIRST, torch.zeros(8, 3, 3, 3)), f"size mismatch for {FIRST}"),
        (lambda path: spoilt(path, "head.weight", torch.zeros(1)), "which has no head.weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(make, words, data, tmp_path, capsys):
    path = tmp_path / "some.pth"
    make(path)
    _, *argv = train(data, "--set", f"weights={path}")
    assert_refused(argv, words.replace("{path}", str(path)), tmp_path / "runs", capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "fasterrcnn"], "download https://download.pytorch.org/models/fasterrcnn"),
        (["--model", "fasterrcnn-tiny"], "fasterrcnn-tiny has no published weights"),
        (["--set", "weights=3"], "weights is pretrained, random or the path of a file, not 3"),
        (["--model", "vgg11"], "there is no model 'vgg11'; there are fasterrcnn, fasterrcnn-tiny"),
        ([*TINY, "--set", "validation=6"], "validation takes all 6 training images"),
        ([*TINY, "--set", "momentums=6"], "momentums"),
        ([*TINY, "--optimizer", "sophia-g"], "sophia-g needs a task with classes"),
        ([*TINY, "--precision", "bf16"], "boxes need more digits than bf16 has"),
        ([*TINY, "--set", "lists=official"], "trainval.txt lists 4 images, not the official 5011"),
        ([*TINY, "--set", "lists=offical"], "did you mean official?"),
    ],
)
def test_what_is_not_supported_is_one_sentence(words, said, data, tmp_path, capsys):
    argv = ["voc", *ANY, "--data-dir", str(data), *words]
    assert_refused(argv, said, tmp_path / "runs", capsys)


# --- the command --------------------------------------------------------------------------------


def train(data: Path, *words: str) -> list[str]:
    return ["train", "voc", *TINY, *ANY, "--data-dir", str(data), *words]


def test_a_run_from_images_on_disk_to_table_and_page(data, tmp_path, capsys):
    out = tmp_path / "runs"
    words = ("--epochs", "4", "--optimizer", "sgd", "--set", "validation=2", "--set", "norms=true")
    folder = trained(train(data, *words), out)
    said = capsys.readouterr().out
    assert re.search(r"best mAP at IoU 0.5 \d+\.\d\d in epoch \d, final", said)
    first, *_, third, last = lines(folder)
    assert first.keys() >= {
        *("test_ap50", "test_ap", "test_voc_ap", "train_loss", "gradient_norm"),
        *("validation_ap50", "validation_ap", "validation_voc_ap"),
    }
    assert (first["lr"], third["lr"], last["lr"]) == pytest.approx((0.01, 0.01, 0.001))
    (picture,) = out.glob("*/pictures/*")
    assert picture.name == "detections.png"
    with Image.open(picture) as image:
        assert image.size == (3 * 408 + 8, 2 * 328 + 8)
    page = tmp_path / "page.html"
    assert main(["report", str(out), "-o", str(page)]) == 0
    assert "mAP at IoU 0.5" in page.read_text()


def test_a_damaged_image_ends_the_run_with_its_name(tmp_path, capsys):
    devkit = made_voc.make(tmp_path / "data", train=3, test=1)
    path = devkit / "VOC2012" / "JPEGImages" / "2008_000001.jpg"
    path.write_bytes(path.read_bytes()[:-200])
    assert main([*train(tmp_path / "data"), "--out", str(tmp_path / "runs")]) == 1
    assert f"{path} cannot be read: " in capsys.readouterr().err


def test_the_synthetic_data_can_be_learnt(tmp_path, monkeypatch):
    monkeypatch.setattr(voc, "DRAWN_CLASSES", 2)  # red and cyan
    monkeypatch.setattr(voc, "DRAWN_TEST", 12)
    detector.load_dataset.cache_clear()
    words = ("--data", "synthetic", "--optimizer", "adam", "--set", "lr=0.003", "--epochs", "5")
    first, *_, last = lines(trained(train(tmp_path, *words), tmp_path / "runs"))
    detector.load_dataset.cache_clear()
    assert last["train_loss"] < 0.5 * first["train_loss"]
    assert last["test_ap50"] > 50
    assert abs(last["test_voc_ap"] - last["test_ap50"]) < 10


def test_detections_are_drawn(data):
    """However small their boxes; but not those with low scores."""
    given = voc.load(data, official=False).test[0]
    plain = found_in.draw([(given, NOTHING)])
    unsure = detections([A], [1], [0.4])
    assert found_in.draw([(given, unsure)]) == plain
    for box in (A, [5.0, 5.0, 5.1, 5.1], [0.0, 0.0, *map(float, given.size)]):
        assert found_in.draw([(given, detections([box], [20], [0.9]))]) != plain


# --- several processes, and the end of one ------------------------------------------------------


def test_two_processes_take_the_steps_of_one(teams, tmp_path):
    """With micro-batches of one image, they also draw the same proposals."""
    coco_like(tmp_path / "coco.pth")
    made_voc.make(tmp_path / "data", train=5, test=3)
    words = train(tmp_path / "data", "--epochs", "2", "--set", f"weights={tmp_path}/coco.pth",
                  "--set", "accumulate=2", "--set", "lr=0.05")  # fmt: skip
    env = {"TORCH_HOME": os.environ["TORCH_HOME"]}
    two, one = two_and_one(teams, tmp_path, words, "best mAP at IoU 0.5", env=env)
    for ours, alone in zip(lines(two), lines(one), strict=True):
        assert ours.keys() == alone.keys()
        assert ours["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-4)
        assert ours["test_ap50"] == pytest.approx(alone["test_ap50"], abs=1)
    torch.testing.assert_close(weights(one), weights(two), rtol=1e-3, atol=1e-5)


def test_a_killed_run_resumes_and_ends_the_same(teams, data, tmp_path):
    env = {"TORCH_HOME": os.environ["TORCH_HOME"]}
    assert_resumes(teams, tmp_path, train(data, "--epochs", "4"), 2, env=env)


# --- published numbers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [{"weights": "random"}, {"lists": "any"}, {"batch": 4}, {"accumulate": 2}]
)
def test_the_published_number_is_shown_for_the_published_settings_only(words):
    assert published_value(configs.make("voc")).mean == 83.81
    assert published_value(configs.make("voc", overrides=words)) is None


def test_reproduce_shows_the_published_numbers(data, tmp_path, capsys, monkeypatch):
    """The complete command, with the tiny network in place of the large one."""
    coco_like(tmp_path / "coco.pth")
    monkeypatch.setitem(detectors.MODELS, "fasterrcnn", detectors.fasterrcnn_tiny)
    monkeypatch.setattr(detectors, "weights_file", lambda *_: tmp_path / "coco.pth")
    monkeypatch.setattr(voc, "OFFICIAL", dict(zip(voc.OFFICIAL, (4, 2, 4), strict=True)))
    words = ["reproduce", "voc-fasterrcnn", "--device", "cpu", "--jobs", "1"]
    words += ["--only", "sgdf", "eadam", "--data-dir", str(data)]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"voc fasterrcnn sgdf .+ \(published 83.81\)", said)
    assert "80.62" in said
    assert "mAP at IoU 0.5" in said
    assert main([*words, "--out", str(tmp_path / "short"), "--epochs", "1"]) == 0
    said = capsys.readouterr().out
    assert "(published" not in said
    monkeypatch.undo()
    assert main([*words, "--out", str(tmp_path / "part")]) == 1
    said = capsys.readouterr()
    assert "not the official 5011" in said.err, "once, and no run has begun"
    assert "failed" not in said.out
