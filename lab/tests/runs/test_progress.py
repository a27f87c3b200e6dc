"""What `train` reports, and how it is shown."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from runs.commands import Clock
from sgdf_lab.runs import config as configs
from sgdf_lab.runs import progress as progresses
from sgdf_lab.runs import session as estimates
from sgdf_lab.runs.config import Config
from sgdf_lab.runs.progress import ProgressBars, ProgressLines, shown_on
from sgdf_lab.runs.session import RunContext, train
from sgdf_lab.support.errors import UserError


def short_run(seed: int = 0, **settings: Any) -> Config:
    overrides = {"lr": 0.1, "batch": 512, **settings}
    return configs.make("digits", seed=seed, epochs=2, data="synthetic", overrides=overrides)


def context_in(folder: Path) -> RunContext:
    return RunContext(folder, torch.device("cpu"))


class Recorder:
    """Keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def started(self, config: Config) -> None:
        self.calls.append(("started", config.seed))

    def step(self, config: Config, done: int, per_epoch: int) -> None:
        self.calls.append(("step", (done, per_epoch)))

    def epoch(self, config: Config, metrics: dict[str, Any]) -> None:
        self.calls.append(("epoch", metrics["epoch"]))

    def failed(self, config: Config, error: str) -> None:
        self.calls.append(("failed", error))

    def ended(self, config: Config, status: str) -> None:
        self.calls.append(("ended", status))

    def message(self, text: str) -> None:
        self.calls.append(("message", text))


def test_what_a_run_reports(tmp_path, capsys):
    recorder = Recorder()
    train([short_run()], context_in(tmp_path), recorder)
    steps = [count for name, count in recorder.calls if name == "step"]
    per_epoch = len(steps) // 2
    assert per_epoch > 1
    assert steps == [(i + 1, per_epoch) for i in range(2 * per_epoch)]
    assert {type(number) for count in steps for number in count} == {int}, "no tensor of a device"
    others = [call for call in recorder.calls if call[0] != "step"]
    assert others == [("started", 0), ("epoch", 1), ("epoch", 2), ("ended", "finished")]
    assert capsys.readouterr() == ("", ""), "train prints nothing itself"

    again = Recorder()
    train([short_run()], context_in(tmp_path), again)
    assert again.calls == [], "a finished run does not start"


def test_a_damaged_checkpoint_is_a_message(tmp_path):
    folder = tmp_path / short_run().name
    folder.mkdir()
    (folder / "last.pt").write_bytes(b"nothing")
    recorder = Recorder()
    train([short_run()], context_in(tmp_path), recorder)
    (text,) = (text for name, text in recorder.calls if name == "message")
    assert text.startswith(f"{folder}/last.pt is damaged")


def test_a_failure_among_several_runs_is_reported_at_once(tmp_path, monkeypatch):
    """And raised, if the run is alone."""
    good, bad = short_run(seed=0), short_run(seed=1, validation=10_000)
    recorder = Recorder()
    results = train([bad, good], context_in(tmp_path), recorder)
    assert [result["status"] for result in results] == ["failed", "finished"]
    names = [name for name, _ in recorder.calls]
    assert ("failed", results[0]["error"]) in recorder.calls
    assert names.index("failed") < names.index("epoch")

    alone = Recorder()
    with pytest.raises(UserError, match=results[0]["error"]):
        train([bad], context_in(tmp_path), alone)
    assert alone.calls == [("started", 1), ("ended", "stopped")]


def metrics_of(epoch: int, accuracy: float | None) -> dict[str, Any]:
    return {"epoch": epoch, "train_loss": 0.5, "test_accuracy": accuracy}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progresses, "time", made)
    return made


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_lines_now_and_then_and_after_the_last_epoch(clock, console):
    config = configs.make("digits", epochs=40, overrides={"lr": 0.1})
    with shown_on(console) as lines:
        assert isinstance(lines, ProgressLines)
        lines.started(config)
        for epoch in range(1, 41):
            lines.step(config, 3 * epoch, 3)
            lines.epoch(config, metrics_of(epoch, 90.0 - epoch if epoch % 2 else None))
            clock.now += 1
    printed = console.file.getvalue().splitlines()
    assert [line.split()[8] for line in printed] == ["1/40", "12/40", "23/40", "34/40", "40/40"]
    assert printed[0].startswith("digits mlp sgdf lr 0.1 seed 0  epoch 1/40  loss 0.500  test acc")
    assert printed[0].endswith("test accuracy 89.00  best 89.00")
    assert printed[1].endswith("loss 0.500"), "not measured in this epoch"
    assert printed[2].endswith("test accuracy 67.00  best 89.00")


def test_a_bar_for_every_run_on_a_terminal():
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    first, second = short_run(0), short_run(1)
    with shown_on(console) as bars:
        assert isinstance(bars, ProgressBars)
        for config in (first, second):
            bars.started(config)
        bars.step(first, 1, 2)
        bars.epoch(second, metrics_of(2, 91.25))
        done = {task.description: task.completed for task in bars.display.tasks}
        assert done == {first.title: 0.5, second.title: 2}
    drawn = console.file.getvalue()
    assert "epoch 2/2  loss 0.500  test accuracy 91.25  best 91.25" in drawn


def texts_of(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_line_now_and_then_within_a_long_epoch(clock, console):
    """Two steps a second, in an epoch of an hour: a line every 30 seconds, and no flood."""
    config = configs.make("digits", epochs=2, overrides={"lr": 0.1})
    lines = ProgressLines(console)
    lines.started(config)
    for done in range(1, 241):
        lines.step(config, done, 7200)
        clock.now += 0.5
    printed = texts_of(console)
    title = "digits mlp sgdf lr 0.1 seed 0"
    assert printed[0] == f"{title}  epoch 1/2, step 7/7200  1:59:56 left  2.0 steps/s", "at once"
    assert printed[1] == f"{title}  epoch 1/2, step 67/7200  1:59:26 left  2.0 steps/s"
    assert len(printed) == 4


def test_several_runs_take_turns_at_lines_about_steps(clock, console):
    runs = [short_run(seed) for seed in range(3)]
    lines = ProgressLines(console)
    for second in range(1, 151):
        for config in runs:
            if config.seed != 1 or second < 100:
                lines.step(config, second, 1000)
        if second == 100:
            lines.ended(runs[1], "diverged")  # and takes no turn any more
        clock.now += 1
    seeds = [line.split("seed ")[1][0] for line in texts_of(console)]
    assert seeds == ["0", "1", "2", "0", "2"]


def test_a_text_counts_steps_of_the_run(clock, console):
    config = configs.make("text", overrides={"lr": 0.1, "steps": 500, "eval_every": 250})
    lines = ProgressLines(console)
    for done in range(255, 300):
        lines.step(config, done, 250)
        clock.now += 2
    assert "  step 257/500  8:06 left  2 s/step" in texts_of(console)[0]
    assert "  step 272/500  7:36 left  2 s/step" in texts_of(console)[1]


@dataclass
class Stepper:
    """A trainer whose steps take a second, and the first of them three."""

    clock: Clock
    sizes: range = range(50)
    closed: bool = False

    def epoch(self) -> Iterator[None]:
        for step in self.sizes:
            self.clock.now += 1 if step else 3
            yield

    def evaluated(self) -> int:
        return 24 * 512

    def close(self) -> None:
        self.closed = True


def test_how_long_a_run_takes_is_told_before_it_starts(monkeypatch, tmp_path):
    """Two epochs of 50 steps, and of 24 batches to evaluate, each a third of a step."""
    clock = Clock()
    monkeypatch.setattr(estimates, "time", clock)
    stepper, start = Stepper(clock), clock.now
    runs = [short_run(seed) for seed in range(3)]
    task = runs[0].task_definition.module
    monkeypatch.setattr(task, "build_trainer", lambda *_, **__: stepper)
    before = torch.get_rng_state()
    words = estimates.time_in_words(runs, context_in(tmp_path))
    assert words == "About 1:56 on cpu for each of 3 runs, at the pace of the first steps"
    assert stepper.closed
    assert clock.now - start < 10, "a long run is not waited for"
    assert torch.equal(torch.get_rng_state(), before)
    assert not list(tmp_path.iterdir())


def test_no_time_is_told_of_runs_that_are_short_or_ended_or_cannot_start(monkeypatch, tmp_path):
    context = context_in(tmp_path)
    assert estimates.time_in_words([short_run()], context) == ""
    monkeypatch.setattr(estimates, "WORTH_SAYING", 0.0)
    bad = short_run(validation=10_000)
    assert estimates.time_in_words([bad], context) == ""
    train([short_run()], context, Recorder())
    assert estimates.time_in_words([short_run()], context) == ""
    both = estimates.time_in_words([short_run(), short_run(1)], context)
    assert re.match(r"About \d+:\d\d on cpu, at the pace", both)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_bars_cut_no_number(clock, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    config = configs.make("finetune-flowers102", epochs=100, overrides={"lr": 0.125})
    with shown_on(console) as bars:
        bars.started(config)
        bars.step(config, 1, 500)
        bars.epoch(config, metrics_of(1, 91.25))
        clock.now += 100
        bars.step(config, 601, 500)
        console.file = io.StringIO()
        console.print(bars.display.get_renderable())
        drawn = console.file.getvalue()
    assert "…" not in drawn
    assert "epoch 1/100  loss 0.500  test accuracy 91.25  best 91.25" in drawn
    assert "epoch 2/100, step 101/500" in drawn
    assert "2:17:13 left" in drawn or width == 60
    assert ("6.0 steps/s" in drawn) == (width > 60)
