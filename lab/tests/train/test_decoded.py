"""Images decoded while training: the same numbers for any number of processes."""

import ast
import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sgdf_lab
from paper import layouts
from sgdf_lab import data
from sgdf_lab.runs import config as configs
from sgdf_lab.runs.session import stop_on_signal
from sgdf_lab.support.errors import UserError
from sgdf_lab.training import decoded
from sgdf_lab.training.batches import micro_batch_sizes
from sgdf_lab.training.distributed import SINGLE_PROCESS, Team

pytest.importorskip("torchvision")
from sgdf_lab.models.vision import MEAN, STD
from sgdf_lab.paper.photos import trainer as photos
from tasks.processes import run_epoch

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return layouts.imagenet(tmp_path_factory.mktemp("data") / "imagenet", train=7).parent


def make(task="imagenet", optimizer="sgd", epochs=2, **settings):
    settings = {"classes": 3, "size": 48, "batch": 8, **settings}
    if task != "imagenet":
        settings = {"weights": "random", **settings}
    model = "resnet-tiny" if task == "imagenet" else "vit-tiny"
    return configs.make(task, model=model, optimizer=optimizer, epochs=epochs, overrides=settings)


def batches_of(root, team=SINGLE_PROCESS, **settings):
    return photos.decoded_data(make(**settings), root, CPU, team)[1]


def micro_batches_of(batches, epoch):
    """All micro-batches of an epoch, in the order in which a trainer takes them."""
    batches.begin(epoch)
    taken = []
    for _, images in batches.plan(epoch):
        taken.append(batches.take_bytes(batches.position, len(images)))
        batches.position += len(images)  # skipping the others' shares matters only to Sophia
    return taken


def test_the_fingerprint_is_of_names_and_labels(root, tmp_path):
    """Wherever the files lie."""
    moved = shutil.copytree(root, tmp_path / "moved")
    fingerprint = batches_of(root).fingerprint()
    assert batches_of(moved).fingerprint() == fingerprint
    more = layouts.imagenet(tmp_path / "more" / "imagenet", train=8).parent
    assert batches_of(more).fingerprint() != fingerprint


# --- order and shares ---------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_shares_and_micro_batches_make_the_batches_of_one_process(root, processes, accumulate):
    """21 images in batches of 8, 8 and 5."""
    alone = [images for _, images in batches_of(root).plan(1)]
    assert [len(images) for images in alone] == [8, 8, 5]
    assert sorted(np.concatenate(alone)) == list(range(21))
    parts = [
        batches_of(root, Team(rank, processes), accumulate=accumulate).plan(1)
        for rank in range(processes)
    ]
    for batch in alone:
        shared: list[int] = []
        for rank, plan in enumerate(parts):
            mine = Team(rank, processes).share(len(batch))[1]
            sizes = micro_batch_sizes(mine, accumulate)
            for size in sizes:
                epoch, images = plan.pop(0)
                assert (epoch, len(images)) == (1, size)
                shared += images.tolist()
        assert shared == batch.tolist()
    assert parts == [[]] * processes


def test_an_epoch_depends_on_seed_and_epoch(root):
    def orders(**settings):
        batches = batches_of(root, **settings)
        return [np.concatenate([i for _, i in batches.plan(e)]) for e in (0, 1)]

    first, second = orders()
    assert first.tolist() != second.tolist()
    assert np.array_equal(orders(), (first, second))
    config = make()
    other = decoded.DecodedBatches(
        data.find("imagenet").load(root, 3).train,
        photos.image_transforms(config)[0],
        decoded.Normalisation(MEAN, STD, CPU),
        configs.make("imagenet", seed=1, overrides={"batch": 8}),
        SINGLE_PROCESS,
    )
    assert np.concatenate([i for _, i in other.plan(0)]).tolist() != first.tolist()


# --- pixels -------------------------------------------------------------------------------------


def test_the_number_of_workers_changes_nothing(root, monkeypatch):
    taken = {}
    for workers in (0, 1, 2):
        monkeypatch.setenv("SGDF_WORKERS", str(workers))
        batches = batches_of(root)
        taken[workers] = micro_batches_of(batches, 0) + micro_batches_of(batches, 1)
    for first, *others in zip(*taken.values(), strict=True):
        for pixels, labels in others:
            assert torch.equal(pixels, first[0])
            assert torch.equal(labels, first[1])


def test_an_image_is_changed_by_seed_epoch_and_itself_alone(root):
    """Whatever was decoded before it, and for whichever process of a team."""
    decoder = batches_of(root).decoder
    alone = decoder.image(3, 5)
    decoder.image(3, 4)
    assert np.array_equal(decoder.image(3, 5), alone)
    assert not np.array_equal(decoder.image(4, 5), alone)
    pixels, _ = decoder[(3, np.array([2, 5]))]
    assert np.array_equal(pixels[1].numpy(), alone)


def test_decoding_leaves_the_random_numbers_alone(root, monkeypatch):
    monkeypatch.setenv("SGDF_WORKERS", "0")
    batches = batches_of(root)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    micro_batches_of(batches, 0)
    list(photos.decoded_data(make(), root, CPU, SINGLE_PROCESS)[2]["test"].batches(0, 4))
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_takes_the_centre_of_images(root):
    """The centre 48 of 55 pixels, normalised; here all by Pillow itself."""
    _, _, evaluation = photos.decoded_data(make(), root, CPU, SINGLE_PROCESS)
    files = data.find("imagenet").load(root, 3).test
    images, labels = next(iter(evaluation["test"].batches(2, 3)))
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


def test_every_image_is_evaluated_once(root, monkeypatch):
    monkeypatch.setattr(decoded, "LARGE_EVALUATION_BATCH", 5)
    _, _, evaluation = photos.decoded_data(make(), root, CPU, SINGLE_PROCESS)
    for team in (1, 2):
        labels = [
            labels
            for rank in range(team)
            for _, labels in evaluation["test"].batches(*Team(rank, team).share(12))
        ]
        assert torch.cat(labels).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert [len(part) for part in labels] == [5, 1, 5, 1]


def test_fine_tuning_sees_complete_images_flipped_or_not(tmp_path):
    layouts.pets(tmp_path / "pets")
    files = data.find("pets").load(tmp_path, 3).train
    with Image.open(files.path(0)) as image:
        whole = np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR))
    batches = batches_of(tmp_path, task="finetune-pets", size=64)
    seen = Counter()
    for epoch in range(20):
        pixels = batches.decoder.image(epoch, 0)
        seen["whole"] += np.array_equal(pixels, whole)
        seen["flipped"] += np.array_equal(pixels, whole[:, ::-1])
    assert seen.total() == 20
    assert min(seen.values()) >= 3
    middle = [bytes(batches.decoder.image(0, i)[32, :4]) for i in range(24)]
    _, _, evaluation = photos.decoded_data(
        make("finetune-pets", size=64), tmp_path, CPU, SINGLE_PROCESS
    )
    decoder = decoded.MicroBatchDecoder(files, evaluation["test"].decoder.transform, 0)
    plain = [bytes(decoder.image(0, i)[32, :4]) for i in range(24)]
    assert 3 <= sum(a == b for a, b in zip(middle, plain, strict=True)) <= 21, "each by itself"


def test_training_sees_random_crops(root):
    decoder = batches_of(root).decoder
    seen = [decoder.image(epoch, 0) for epoch in range(6)]
    assert all(pixels.shape == (48, 48, 3) for pixels in seen)
    assert len({pixels.tobytes() for pixels in seen}) == 6


def test_images_held_out_are_not_trained_on(root):
    _, batches, evaluation = photos.decoded_data(make(validation=6), root, CPU, SINGLE_PROCESS)
    kept, held = batches.files.names.tolist(), evaluation["validation"].decoder.files.names.tolist()
    assert (len(kept), len(held), len(evaluation["test"])) == (15, 6, 12)
    assert not set(kept) & set(held)
    with pytest.raises(UserError, match="validation takes all 21"):
        photos.decoded_data(make(validation=21), root, CPU, SINGLE_PROCESS)


# --- in the trainer -----------------------------------------------------------------------------


def trainer_for(root, **settings):
    settings = {"size": 32, **settings}
    return photos.build_trainer(make("finetune-imagenet", **settings), CPU, data_dir=root)


def test_the_last_batch_can_be_taken_again(root):
    """As for Sophia's estimate: by its position, at once, after all of its micro-batches."""
    batches = batches_of(root, Team(1, 2), accumulate=2)
    batches.begin(0)
    for first, size in ((4, 2), (6, 2), (12, 2), (14, 2)):  # the second halves of two batches
        batches.position.fill_(first)
        batches.take_bytes(batches.position, size)
    pixels, labels = batches.take_bytes(torch.tensor(12), 4)
    images = np.concatenate([images for _, images in batches.plan(0)])[4:8]
    assert torch.equal(pixels, batches.decoder[(0, images)][0])
    assert labels.tolist() == batches.files.labels[images].tolist()
    assert len(batches.recent) == 2, "no more than that is kept"
    settings = {"optimizer": "sophia-g", "hessian_every": 1, "epochs": 1, "lr": 0.01}
    assert run_epoch(trainer_for(root, **settings, accumulate=3))["train_loss"] > 0


def test_a_compiled_step_does_not_trace_the_decoding(root):
    plain, compiled = trainer_for(root), trainer_for(root)
    compiled.compiled_loss = torch.compile(compiled._loss, backend="eager", dynamic=False)
    for _ in range(2):
        assert run_epoch(compiled) == run_epoch(plain)


def test_decoding_starts_ahead_of_the_next_epoch_but_not_after_the_last(root):
    trainer = trainer_for(root)
    run_epoch(trainer)
    assert trainer.batches.ahead[0] == 1
    run_epoch(trainer)
    assert trainer.batches.ahead is None


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("damage", ["cut", "no image", "gone"])
def test_an_image_that_cannot_be_decoded_is_named(tmp_path, monkeypatch, workers, damage):
    monkeypatch.setenv("SGDF_WORKERS", workers)
    root = layouts.imagenet(tmp_path / "imagenet", train=3, test=2).parent
    batches = batches_of(root, batch=3)
    path = root / "imagenet/train/n01443537/n01443537_1.JPEG"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:500] if damage == "cut" else b"no image")
    with pytest.raises(UserError) as raised:
        micro_batches_of(batches, 0)
    message = str(raised.value)
    assert message.startswith(f"{path} is not a complete image (")
    assert message.endswith("): replace the file")
    assert "Traceback" not in message


@pytest.mark.parametrize("ending", ["png", "tiff", "pgm"])
def test_grey_of_16_bits_keeps_its_levels(tmp_path, ending):
    levels = np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4)
    path = tmp_path / f"grey.{ending}"
    if ending == "pgm":
        path.write_bytes(b"P5 4 4 65535\n" + levels.astype(">u2").tobytes())
    else:
        Image.fromarray(levels).save(path)
    assert np.array_equal(np.asarray(decoded.decode(path)), np.stack([levels // 256] * 3, axis=-1))


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_of_32_bits_are_refused(tmp_path, kind):
    Image.fromarray(np.ones((4, 4), dtype=kind)).save(tmp_path / "depth.tiff")
    with pytest.raises(UserError, match=r"depth\.tiff has pixels of 32 bits, .*: convert it to 8"):
        decoded.decode(tmp_path / "depth.tiff")


def test_a_process_that_dies_is_reported(root, monkeypatch):
    monkeypatch.setenv("SGDF_WORKERS", "1")
    me = os.getpid()
    image = decoded.MicroBatchDecoder.image

    def die(self, epoch, index):
        if os.getpid() != me:
            os.kill(os.getpid(), signal.SIGKILL)
        return image(self, epoch, index)

    monkeypatch.setattr(decoded.MicroBatchDecoder, "image", die)
    with pytest.raises(UserError, match=r"a process that decodes images died .+SGDF_WORKERS"):
        micro_batches_of(batches_of(root), 0)


def test_decoding_processes_ignore_ctrl_c(root, monkeypatch, capfd):
    """A terminal sends it to all processes; they inherit the handlers of the training process."""
    monkeypatch.setenv("SGDF_WORKERS", "1")
    batches = batches_of(root)
    with stop_on_signal(print) as stop:
        batches.begin(0)
        batches.take_bytes(torch.tensor(0), 8)
        (worker,) = multiprocessing.active_children()
        os.kill(worker.pid, signal.SIGINT)
        batches.take_bytes(torch.tensor(8), 8)
        batches.take_bytes(torch.tensor(16), 5)
        with contextlib.suppress(RuntimeError):  # torch may report so that it is gone
            os.kill(worker.pid, signal.SIGTERM)
            worker.join(10)
        worker.join(10)
        assert worker.exitcode == -signal.SIGTERM
    assert not stop.requested
    assert capfd.readouterr().out == ""
    batches.close()


def test_number_of_decoding_processes(monkeypatch):
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
    with pytest.raises(UserError, match="SGDF_WORKERS is an integer of at least 0, not 'many'"):
        decoded.workers_for(100)


def test_an_image_runs_no_program(tmp_path, monkeypatch):
    """PostScript under the name of a JPEG would start Ghostscript."""
    path = tmp_path / "0.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(subprocess, "check_call", None)
    with pytest.raises(UserError, match=r"0\.jpg is not a complete image"):
        decoded.decode(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "0.jpg")
    with pytest.raises(UserError, match=r"\(0\.jpg is not a regular file\)"):
        decoded.decode(tmp_path / "0.jpg")


def test_every_picture_is_opened_with_the_formats_that_it_may_have():
    """Without them Pillow tries all it knows, and some of these start programs."""
    (package,) = sgdf_lab.__path__
    bare = [
        f"{path}:{call.lineno}"
        for path in Path(package).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith("Image.open")
        and not {"formats"} & {keyword.arg for keyword in call.keywords}
    ]
    assert bare == []
