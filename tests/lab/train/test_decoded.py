"""Images decoded while training: the same numbers however many processes do it."""

import contextlib
import multiprocessing
import os
import signal
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from lab.data import layouts
from sgdf.lab.data import folders
from sgdf.lab.runs import config as configs
from sgdf.lab.runs.signals import stop_on_signal
from sgdf.lab.train.distributed import ALONE, Team
from sgdf.lab.train.loop import piece_sizes
from sgdf.lab.train.pipelines import decoded
from sgdf.support.errors import UserError

pytest.importorskip("torchvision")
from sgdf.lab.models.vision import MEAN, STD
from sgdf.lab.tasks import photos

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return layouts.imagenet(tmp_path_factory.mktemp("data") / "imagenet", train=7).parent


def make(task="imagenet", optimizer="sgd", epochs=2, **said):
    said = {"classes": 3, "size": 48, "batch": 8, **said}
    if task != "imagenet":
        said = {"weights": "random", **said}
    model = "resnet-tiny" if task == "imagenet" else "vit-tiny"
    return configs.make(task, model=model, optimizer=optimizer, epochs=epochs, overrides=said)


def stream_of(root, team=ALONE, **said):
    return photos.streamed(make(**said), root, CPU, team)[1]


def pieces_of(stream, epoch):
    """Everything in the order in which a trainer asks for it."""
    stream.begin(epoch)
    taken = []
    for _, images in stream.plan(epoch):
        taken.append(stream.bytes_of(stream.position, len(images)))
        stream.position += len(images)  # skipping the others' shares matters to Sophia alone
    return taken


# --- order and shares ---------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_shares_and_pieces_make_the_batches_of_one(root, processes, accumulate):
    """21 images in batches of 8, 8 and 5."""
    alone = [images for _, images in stream_of(root).plan(1)]
    assert [len(images) for images in alone] == [8, 8, 5]
    assert sorted(np.concatenate(alone)) == list(range(21))
    parts = [
        stream_of(root, Team(rank, processes), accumulate=accumulate).plan(1)
        for rank in range(processes)
    ]
    for batch in alone:
        shared: list[int] = []
        for rank, plan in enumerate(parts):
            mine = Team(rank, processes).share(len(batch))[1]
            sizes = piece_sizes(mine, accumulate)
            for size in sizes:
                epoch, images = plan.pop(0)
                assert (epoch, len(images)) == (1, size)
                shared += images.tolist()
        assert shared == batch.tolist()
    assert parts == [[]] * processes


def test_an_epoch_depends_on_seed_and_epoch(root):
    def orders(**said):
        return [np.concatenate([i for _, i in stream_of(root, **said).plan(e)]) for e in (0, 1)]

    first, second = orders()
    assert first.tolist() != second.tolist()
    assert np.array_equal(orders(), (first, second))
    config = make()
    other = decoded.Stream(
        folders.load("imagenet", root, 3).train,
        photos.changes(config)[0],
        decoded.Look(MEAN, STD, CPU),
        configs.make("imagenet", seed=1, overrides={"batch": 8}),
        ALONE,
    )
    assert np.concatenate([i for _, i in other.plan(0)]).tolist() != first.tolist()


# --- pixels -------------------------------------------------------------------------------------


def test_the_number_of_workers_changes_nothing(root, monkeypatch):
    found = {}
    for workers in (0, 1, 2):
        monkeypatch.setenv("SGDF_WORKERS", str(workers))
        stream = stream_of(root)
        found[workers] = pieces_of(stream, 0) + pieces_of(stream, 1)
    for pieces in zip(*found.values(), strict=True):
        for pixels, labels in pieces[1:]:
            assert torch.equal(pixels, pieces[0][0])
            assert torch.equal(labels, pieces[0][1])


def test_an_image_is_changed_by_seed_epoch_and_itself_alone(root):
    """Whatever was decoded before it, and for whichever process of a team."""
    pictures = stream_of(root).pictures
    alone = pictures.picture(3, 5)
    pictures.picture(3, 4)
    assert np.array_equal(pictures.picture(3, 5), alone)
    assert not np.array_equal(pictures.picture(4, 5), alone)
    pixels, _ = pictures[(3, np.array([2, 5]))]
    assert np.array_equal(pixels[1].numpy(), alone)


def test_decoding_leaves_the_random_numbers_alone(root, monkeypatch):
    monkeypatch.setenv("SGDF_WORKERS", "0")
    stream = stream_of(root)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    pieces_of(stream, 0)
    list(photos.streamed(make(), root, CPU, ALONE)[2]["test"].batches(0, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_images_to_judge_by_are_the_middle(root):
    """Resized so that 48 of 55 pixels are the middle, normalised; all by Pillow itself here."""
    _, _, judged = photos.streamed(make(), root, CPU, ALONE)
    files = folders.load("imagenet", root, 3).test
    images, labels = next(iter(judged["test"].batches(2, 3)))
    assert labels.tolist() == files.labels[2:5].tolist()
    assert images.shape == (3, 3, 48, 48)
    with Image.open(files.path(2)) as image:
        scale = 55 / min(image.size)
        width, height = (round(55 if s == min(image.size) else int(s * scale)) for s in image.size)
        small = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - 48) / 2), round((height - 48) / 2)
        middle = np.asarray(small.crop((left, top, left + 48, top + 48)))
    expected = (middle / 255 - np.array(MEAN)) / np.array(STD)
    torch.testing.assert_close(images[0].permute(1, 2, 0).double(), torch.from_numpy(expected),
                               rtol=1e-5, atol=1e-5)  # fmt: skip


def test_every_image_is_judged_once(root, monkeypatch):
    monkeypatch.setattr(decoded, "LARGE_EVALUATION_BATCH", 5)
    _, _, judged = photos.streamed(make(), root, CPU, ALONE)
    for team in (1, 2):
        labels = [
            labels
            for rank in range(team)
            for _, labels in judged["test"].batches(*Team(rank, team).share(12))
        ]
        assert torch.cat(labels).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert [len(part) for part in labels] == [5, 1, 5, 1]


def test_fine_tuning_sees_whole_images_flipped_or_not(tmp_path):
    layouts.pets(tmp_path / "pets")
    files = folders.load("pets", tmp_path, 3).train
    with Image.open(files.path(0)) as image:
        whole = np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR))
    stream = stream_of(tmp_path, task="finetune-pets", size=64)
    seen = Counter()
    for epoch in range(20):
        pixels = stream.pictures.picture(epoch, 0)
        seen["whole"] += np.array_equal(pixels, whole)
        seen["flipped"] += np.array_equal(pixels, whole[:, ::-1])
    assert seen.total() == 20
    assert min(seen.values()) >= 3
    middle = [bytes(stream.pictures.picture(0, i)[32, :4]) for i in range(24)]
    judged = photos.streamed(make("finetune-pets", size=64), tmp_path, CPU, ALONE)[2]["test"]
    pictures = decoded.Pictures(files, judged.pictures.change, 0)
    plain = [bytes(pictures.picture(0, i)[32, :4]) for i in range(24)]
    assert 3 <= sum(a == b for a, b in zip(middle, plain, strict=True)) <= 21, "each by itself"


def test_training_sees_parts_of_images(root):
    pictures = stream_of(root).pictures
    seen = [pictures.picture(epoch, 0) for epoch in range(6)]
    assert all(pixels.shape == (48, 48, 3) for pixels in seen)
    assert len({pixels.tobytes() for pixels in seen}) == 6


def test_images_held_out_are_not_trained_on(root):
    _, batches, judged = photos.streamed(make(validation=6), root, CPU, ALONE)
    kept, held = batches.files.names.tolist(), judged["validation"].pictures.files.names.tolist()
    assert (len(kept), len(held), len(judged["test"])) == (15, 6, 12)
    assert not set(kept) & set(held)
    with pytest.raises(UserError, match="validation takes all 21"):
        photos.streamed(make(validation=21), root, CPU, ALONE)


# --- in the trainer -----------------------------------------------------------------------------


def run_epoch(trainer):
    for _ in trainer.epoch():
        pass
    return trainer.metrics()


def trainer_for(root, **said):
    said = {"size": 32, **said}
    return photos.build(make("finetune-imagenet", **said), CPU, data_dir=root)


def test_the_batch_before_can_be_had_once_more(root):
    """As Sophia asks for it: by its position, in one piece, after all of its pieces."""
    stream = stream_of(root, Team(1, 2), accumulate=2)
    stream.begin(0)
    for first, size in ((4, 2), (6, 2), (12, 2), (14, 2)):  # the second halves of two batches
        stream.position.fill_(first)
        stream.bytes_of(stream.position, size)
    pixels, labels = stream.bytes_of(torch.tensor(12), 4)
    images = np.concatenate([images for _, images in stream.plan(0)])[4:8]
    assert torch.equal(pixels, stream.pictures[(0, images)][0])
    assert labels.tolist() == stream.files.labels[images].tolist()
    assert len(stream.recent) == 2, "no more than that is kept"
    said = {"optimizer": "sophia-g", "hessian_every": 1, "epochs": 1, "lr": 0.01}
    assert run_epoch(trainer_for(root, **said, accumulate=3))["train_loss"] > 0


def test_a_compiled_step_does_not_look_into_the_stream(root):
    plain, compiled = trainer_for(root), trainer_for(root)
    compiled.compiled_loss = torch.compile(compiled._loss, backend="eager", dynamic=False)
    for _ in range(2):
        assert run_epoch(compiled) == run_epoch(plain)


def test_the_next_epoch_is_started_ahead_but_not_after_the_last(root):
    trainer = trainer_for(root)
    run_epoch(trainer)
    assert trainer.batches.ahead[0] == 1
    run_epoch(trainer)
    assert trainer.batches.ahead is None


# --- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("damage", ["cut", "no image", "gone"])
def test_an_image_that_cannot_be_decoded_is_named(tmp_path, monkeypatch, workers, damage):
    monkeypatch.setenv("SGDF_WORKERS", workers)
    root = layouts.imagenet(tmp_path / "imagenet", train=3, test=2).parent
    stream = stream_of(root, batch=3)
    path = root / "imagenet/train/n01443537/n01443537_1.JPEG"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:500] if damage == "cut" else b"no image")
    with pytest.raises(UserError) as raised:
        pieces_of(stream, 0)
    said = str(raised.value)
    assert said.startswith(f"{path} is not a whole image (")
    assert said.endswith("): put it there again")
    assert "Traceback" not in said


def test_a_process_that_dies_is_a_sentence(root, monkeypatch):
    monkeypatch.setenv("SGDF_WORKERS", "1")
    me = os.getpid()
    picture = decoded.Pictures.picture

    def die(self, epoch, index):
        if os.getpid() != me:
            os.kill(os.getpid(), signal.SIGKILL)
        return picture(self, epoch, index)

    monkeypatch.setattr(decoded.Pictures, "picture", die)
    with pytest.raises(UserError, match=r"a process that decodes images died .+SGDF_WORKERS"):
        pieces_of(stream_of(root), 0)


def test_ctrl_c_is_not_for_the_processes_that_decode(root, monkeypatch, capfd):
    """A terminal sends it to all; they have the handlers of the process that they come from."""
    monkeypatch.setenv("SGDF_WORKERS", "1")
    stream = stream_of(root)
    with stop_on_signal(print) as stop:
        stream.begin(0)
        stream.bytes_of(torch.tensor(0), 8)
        (worker,) = multiprocessing.active_children()
        os.kill(worker.pid, signal.SIGINT)
        stream.bytes_of(torch.tensor(8), 8)
        stream.bytes_of(torch.tensor(16), 5)
        with contextlib.suppress(RuntimeError):  # by which torch may say that it is gone
            os.kill(worker.pid, signal.SIGTERM)
            worker.join(10)
        worker.join(10)
        assert worker.exitcode == -signal.SIGTERM
    assert not stop.requested
    assert capfd.readouterr().out == ""
    stream.close()


def test_how_many_processes_decode(monkeypatch):
    monkeypatch.delenv("SGDF_WORKERS", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    assert decoded.workers_for(100) == 0
    assert decoded.workers_for(100_000) == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert decoded.workers_for(100_000) == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "40")
    assert decoded.workers_for(100_000) == 1
    monkeypatch.setenv("SGDF_WORKERS", "5")
    assert decoded.workers_for(100) == 5
    monkeypatch.setenv("SGDF_WORKERS", "many")
    with pytest.raises(UserError, match="SGDF_WORKERS is a whole number from 0 on, not 'many'"):
        decoded.workers_for(100)
