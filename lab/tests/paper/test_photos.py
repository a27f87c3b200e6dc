"""ImageNet and the fine-tuning of ViT by the commands a user types, on a few small photographs."""

import dataclasses
import json
import multiprocessing
import re
import signal

import pytest
import torch

from data.published import put
from paper import layouts
from runs.commands import TEAMS, Server, fault, folder_in
from sgdf_lab import data as datasets
from sgdf_lab import tasks
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.results import published_value
from sgdf_lab.support.errors import UserError

pytest.importorskip("torchvision")
from sgdf_lab.models import vision as models
from sgdf_lab.paper.photos import trainer as photos
from sgdf_lab.registry.tasks import VIT_MODELS
from tasks.processes import assert_same_lines, lines, typed

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SMALL = ["--device", "cpu", "--set", "classes=3", "--set", "size=64", "--set", "batch=9"]
TINY = ["--model", "vit-tiny", "--set", "weights=random", "--set", "accumulate=2"]
PETS = ["train", "finetune-pets", *TINY, *SMALL]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for name, make in layouts.MAKE.items():
        make(root / name)
    return root


@pytest.fixture
def sgdf(data, tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; returns exit code and all that it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SGDF_DATA", str(data))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    photos.load_files.cache_clear()
    return typed(capsys)


def metrics(out):
    return lines(folder_in(out))


# --- every task ---------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["imagenet", *(f"finetune-{name}" for name in layouts.MAKE)])
def test_a_run_from_files(sgdf, tmp_path, task):
    model = ["--model", "resnet-tiny", "--set", "lr=0.02"] if task == "imagenet" else TINY
    code, said = sgdf("train", task, *model, *SMALL, "--epochs", 3)
    assert code == 0, said
    assert f"{task} {model[1]} sgdf" in said
    first, *_, last = metrics(tmp_path / "runs")
    assert last["train_loss"] < first["train_loss"]
    if model is TINY:
        assert last["test_accuracy"] > 60, "the colours tell the classes"
    has_top5 = task.endswith("imagenet")
    assert [metric.key for metric in tasks.find(task).metrics] == ["test_accuracy"] + (
        ["test_top5_accuracy"] * has_top5
    )
    assert ("test_top5_accuracy" in first) == has_top5
    if has_top5:
        assert first["test_top5_accuracy"] == 100, "there are but three classes"


def test_a_run_from_small_images(sgdf, tmp_path):
    """CIFAR's stay small and are enlarged when they are taken."""
    words = ["--data", "synthetic", "--set", "size=32", "--epochs", 1, "--device", "cpu"]
    code, said = sgdf("train", "finetune-cifar100", *TINY, *words, "--set", "validation=500")
    assert code == 0, said
    (line,) = metrics(tmp_path / "runs")
    assert line["validation_loss"] < 4.7
    assert "test_top5_accuracy" not in line


def test_small_images_are_enlarged_and_flipped():
    config = configs.make("finetune-cifar10", model="vit-tiny", data="synthetic",
                          overrides={"weights": "random", "size": 96})  # fmt: skip
    classes, batches, evaluation = photos.resident_data(config, None, CPU, None)
    assert (classes, len(batches), len(evaluation["test"])) == (10, 2048, 512)
    batches.begin(0)
    images, labels = batches.take(batches.position, 20)
    assert images.shape == (20, 3, 96, 96)
    index, y, x, flip = batches.plan[:, :20]
    assert not y.any()
    assert not x.any()
    assert 0 < flip.sum() < 20
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (models.MEAN, models.STD))
    split = photos.classify.load_dataset("finetune-cifar10", None, True).train
    for i in range(20):
        small = (split.images[index[i]].float() / 255 - mean) / std
        small = small.flip(-1) if flip[i] else small
        # Where the centres of pixels meet, bilinear interpolation keeps them.
        torch.testing.assert_close(images[i, :, 1::3, 1::3], small, rtol=1e-4, atol=1e-5)
        assert labels[i] == split.labels[index[i]]


def test_top5():
    """A right answer is among the first five, or it is not."""
    config = configs.make("imagenet", model="resnet-tiny", overrides={"lr": 0.1})
    answers = (
        torch.ones(8, 8).tril(-1) + torch.arange(8.0) / 100
    )  # row i: the first i, then the last
    labels = torch.full((8,), 2)

    class Answers:
        def __len__(self):
            return 8

        def batches(self, first, count):
            yield answers, labels

    class Training(Answers):
        position, resident = torch.zeros(()), False

    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(8, 8))
    torch.nn.init.eye_(model[1].weight)
    torch.nn.init.zeros_(model[1].bias)
    trainer = photos.Classifier(config, model, Training(), {"test": Answers()}, CPU)
    measured = trainer._evaluate()
    before = (answers > answers[:, 2:3]).sum(1)  # answers that are before the right one
    assert before.tolist() == [5, 6, 7, 0, 1, 2, 3, 4]
    assert measured["test_accuracy"][0] == 100
    assert measured["test_top5_accuracy"][0] == 500


def test_the_names_of_the_networks():
    assert tuple(models.TRANSFORMERS) == VIT_MODELS
    for name in models.CONVOLUTIONAL:
        with torch.device("meta"):
            model = models.build_vision_model(name, classes=7, size=224)
            assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 7)
    for name, millions in (("vit-b32", 88), ("vit-l32", 306)):
        with torch.device("meta"):
            model = models.build_vision_model(name, classes=37, size=384)
        assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions
        assert model.encoder.pos_embedding.shape[1] == 12 * 12 + 1
        assert len(model.encoder.layers) in (12, 24)


# --- interruptions and processes ----------------------------------------------------------------


@pytest.fixture(scope="module")
def server(data):
    patch = pytest.MonkeyPatch()
    patch.setenv("SGDF_WORKERS", "2")
    server = Server(modules=TEAMS)
    yield server
    server.process.communicate()
    patch.undo()


def test_a_killed_run_resumes_and_ends_the_same(server, data, tmp_path):
    """The decoding processes outlive it for seconds and must not hold its lock."""
    argv = (*PETS, "--epochs", "4", "--data-dir", str(data))
    straight = server.start(argv, tmp_path / "straight")
    out = tmp_path / "killed"
    for op, nth in (("write metrics.jsonl", 1), ("write last.pt.new", 3), ("replace last.pt", 0)):
        ended = server.run(argv, out, **fault(op, "SIGKILL", nth))
        assert ended.code == -signal.SIGKILL, ended
    ended = server.run(argv, out)
    assert ended.code == 0, ended
    assert straight.wait().code == 0
    expected = (folder_in(tmp_path / "straight") / "metrics.jsonl").read_bytes()
    assert (folder_in(out) / "metrics.jsonl").read_bytes() == expected
    assert expected.count(b"\n") == 4
    environment = json.loads((folder_in(out) / "env.json").read_text())
    assert len(environment["earlier"]) == 3


@pytest.mark.parametrize(
    ("shard", "held_out"), [([], 5), (["--shard"], 10)], ids=["batches", "weights"]
)
def test_two_processes_take_the_steps_of_one(server, data, tmp_path, shard, held_out):
    """A batch of 9 as 5 and 4, each in two micro-batches; the last one has 6 images, or one."""
    words = [*PETS, "--epochs", "2", "--data-dir", str(data), "--set", f"validation={held_out}"]
    two = server.start_two((*words, *shard), tmp_path / "two")
    assert server.run(tuple(words), tmp_path / "one").code == 0
    ended = two.wait()
    assert ended.code == 0, ended.output
    assert ended.output.count("best test accuracy") == 1
    assert_same_lines(folder_in(tmp_path / "two"), folder_in(tmp_path / "one"), rel=1e-4)


# --- weights ------------------------------------------------------------------------------------


def pretrained(path, size=64, old_names=False, **changes):
    """A file as torchvision publishes them: another resolution, another head."""
    torch.manual_seed(5)
    model = models.TRANSFORMERS["vit-tiny"](image_size=size, num_classes=1000)
    torch.nn.init.normal_(model.heads.head.weight)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    if old_names:
        for name in list(state):
            new = name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2.")
            state[new] = state.pop(name)
    for name, value in changes.items():
        state[name.replace("__", ".")] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({name: value for name, value in state.items() if value is not None}, path)
    return model


@pytest.mark.parametrize("old_names", [False, True])
def test_pretrained_weights_with_a_new_head_and_grid(tmp_path, old_names):
    path = tmp_path / "weights.pth"
    source = pretrained(path, old_names=old_names)
    model = photos.build_model("vit-tiny", classes=3, size=96, file=path)
    theirs = dict(source.named_parameters())
    for name, value in model.named_parameters():
        if name.startswith("heads."):
            assert value.shape[0] == 3
            assert not value.any(), "the new head is zero"
        elif name != "encoder.pos_embedding":
            assert torch.equal(value, theirs[name]), name
    ours, before = model.encoder.pos_embedding, source.encoder.pos_embedding
    assert torch.equal(ours[:, 0], before[:, 0]), "that of the class token"
    old, new = before[0, 1:].view(2, 2, -1), ours[0, 1:].view(3, 3, -1)
    torch.testing.assert_close(new[::2, ::2], old)
    # Halfway between two of the four, a cubic has their mean, the outermost repeated.
    torch.testing.assert_close(new[0, 1], old[0].mean(0))
    torch.testing.assert_close(new[1, 0], old[:, 0].mean(0))
    torch.testing.assert_close(new[1, 1], old.mean((0, 1)))


def test_weights_of_the_same_grid_keep_their_place_but_not_their_head(tmp_path):
    path = tmp_path / "weights.pth"
    source = pretrained(path)
    model = photos.build_model("vit-tiny", classes=1000, size=64, file=path)
    assert torch.equal(model.encoder.pos_embedding, source.encoder.pos_embedding)
    assert not model.heads.head.weight.any()


def test_a_run_from_a_file_of_weights(sgdf, tmp_path):
    pretrained(tmp_path / "weights.pth")
    words = [word for word in PETS if not word.startswith("weights=")]
    words[words.index("--set")] = "--epochs"  # where weights= has been taken out
    words.insert(words.index("--epochs") + 1, "2")
    code, said = sgdf(*words, "--set", f"weights={tmp_path}/weights.pth")
    assert code == 0, said
    config = json.loads((folder_in(tmp_path / "runs") / "config.json").read_text())
    assert config["options"]["weights"] == f"{tmp_path}/weights.pth"
    checkpoint = folder_in(tmp_path / "runs") / "last.pt"
    code, said = sgdf(*words, "--set", f"weights={checkpoint}", "--seed", "1")
    assert code == 0, f"a run's own checkpoint is a weights file too: {said}"


MISFITS = [
    ({"class_token": torch.zeros(1, 1, 16)}, r"size mismatch for class_token"),
    ({"class_token": None}, r"it has no class_token"),
    ({"encoder__pos_embedding": None}, r"it has no encoder\.pos_embedding of three dimensions"),
    ({"encoder__pos_embedding": torch.zeros(1, 4, 32)}, r"seq_length is not a perfect square"),
    ({"encoder__more": torch.zeros(2)}, r"which has no encoder\.more"),
]


@pytest.mark.parametrize(("changes", "sentence"), MISFITS)
def test_weights_that_do_not_fit(tmp_path, changes, sentence):
    path = tmp_path / "weights.pth"
    pretrained(path, **changes)
    with pytest.raises(UserError, match=rf"{path} does not fit the model.+{sentence}") as raised:
        photos.build_model("vit-tiny", classes=3, size=96, file=path)
    assert "\n" not in str(raised.value)


class Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_files_that_are_no_weights(tmp_path, capsys):
    path = tmp_path / "weights.pth"
    for content in (b"", b"no weights", Evil(), [1, 2], {1: 2}):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        with pytest.raises(UserError, match=rf"{path} is not a weights file: "):
            photos.build_model("vit-tiny", classes=3, size=96, file=path)
    assert "ran" not in capsys.readouterr().out


def test_weights_that_are_not_here(sgdf, tmp_path):
    url = "https://download.pytorch.org/models/vit_b_32-d86f8d99.pth"
    place = f"{tmp_path}/torch/hub/checkpoints/vit_b_32-d86f8d99.pth"
    sentence = f"the pretrained weights of vit-b32 are not here: download {url} to {place}, or use"
    code, said = sgdf("train", "finetune-pets", *SMALL)
    assert code == 1
    assert sentence in said
    code, said = sgdf("reproduce", "vit-b32-pets", "--device", "cpu", "--jobs", 1)
    assert code == 1
    assert said.count(sentence) == 1, "once, and not for every run"
    assert not (tmp_path / "torch").exists()
    code, said = sgdf("train", "finetune-pets", "--model", "vit-tiny", *SMALL)
    assert "vit-tiny has no published weights: --set weights=random, or a file's path" in said
    code, said = sgdf("train", "finetune-pets", *SMALL, "--set", "weights=none.pth")
    assert "there is no weights file none.pth: --set weights takes pretrained, random" in said
    assert code == 1


# --- other mistakes ----------------------------------------------------------------------------


def test_a_damaged_image_ends_the_run_and_is_named(sgdf, tmp_path, monkeypatch):
    monkeypatch.setenv("SGDF_WORKERS", "2")
    root = layouts.pets(tmp_path / "data" / "pets").parent
    path = root / "pets/images/Bengal_10.jpg"  # a test image
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    words = [*PETS, "--epochs", 2, "--data-dir", root]
    code, said = sgdf(*words)
    assert code == 1
    assert f"{path} is not a complete image (image file is truncated" in said
    assert not multiprocessing.active_children(), "no process is left"
    path.write_bytes(whole)
    code, said = sgdf(*words)
    assert code == 0, "repaired, the same command resumes"


# --- published numbers -------------------------------------------------------------------------


def published(task, **said):
    value = published_value(configs.make(task, **said))
    return value and value.mean


def test_published_numbers_are_shown_for_the_published_settings_only():
    assert published("imagenet") == 70.55
    assert published("imagenet", epochs=90) is None
    assert published("imagenet", model="resnet50") == 76.65
    assert published("imagenet", model="resnet50", epochs=100) is None
    assert published("imagenet", model="resnet-tiny") is None
    assert published("imagenet", overrides={"size": 160}) is None
    assert published("imagenet", overrides={"classes": 100}) is None
    assert published("finetune-food101", model="vit-l32", optimizer="sgd") == 89.23
    assert published("finetune-food101") == 88.68
    assert published("finetune-food101", overrides={"weights": "random"}) is None
    assert published("finetune-food101", overrides={"weights": "of-imagenet-21k.pth"}) == 88.68
    assert published("finetune-food101", overrides={"size": 224}) is None
    assert published("finetune-food101", overrides={"clip": None}) is None
    assert published("finetune-cifar10", data="synthetic") is None
    assert published("finetune-cifar10") == 98.64


@pytest.fixture
def as_if_whole(monkeypatch, data, tmp_path):
    """The few images pass for the whole dataset, the tiny networks for the large ones."""
    for name in ("pets", "imagenet"):
        known = dataclasses.replace(datasets.find(name), classes=3, train=24, test=12)
        put(monkeypatch, name, known)
    monkeypatch.setitem(models.TRANSFORMERS, "vit-b32", models.TRANSFORMERS["vit-tiny"])
    monkeypatch.setitem(models.CONVOLUTIONAL, "resnet18", models.CONVOLUTIONAL["resnet-tiny"])
    pretrained(tmp_path / "torch/hub/checkpoints/vit_b_32-d86f8d99.pth", size=224)


def test_reproduce(sgdf, as_if_whole, tmp_path):
    here = ["--device", "cpu", "--jobs", 1]
    code, said = sgdf("reproduce", "vit-b32-pets", *here)
    assert code == 0, said
    for optimizer, lr, value in (("sgd", "0.03", "90.26"), ("sgdf", "0.5", "92.34")):
        line = (
            rf"finetune-pets vit-b32 {optimizer} lr {lr} seed 2025: best .+ \(published {value}\)"
        )
        assert re.search(line, said), said
    assert "ImageNet-21k" in said
    code, said = sgdf("reproduce", "imagenet-resnet18", "--only", "sgdf", "--epochs", 1, *here)
    assert code == 0, said
    assert "imagenet resnet18 sgdf lr 0.5 seed 2025: best" in said
    assert "(published" not in said, "one epoch is not a hundred"
    code, said = sgdf("report", "runs", "-o", "page.html")
    assert code == 0, said
    assert "vit-b32" in (tmp_path / "page.html").read_text()
