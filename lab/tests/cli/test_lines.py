"""The first line says what a command does and where it writes, the last what to do next."""

from sgdf_lab.cli.main import main

QUICK = ["--data", "synthetic", "--epochs", "1", "--device", "cpu", "--set", "batch=512"]
COMMANDS = {
    "train": (["train", "digits", *QUICK, "--seed", "0", "1"], "sgdf, lr 0.5, 2 seeds", "report"),
    "report": (["report", "runs"], "2 runs of runs", "report.html"),
    "sweep": (["sweep", "it.toml", "--jobs", "1", "--device", "cpu"], "one at a time", "it.html"),
    "theory": (["theory", "--only", "gradient-sum"], "1 statement", "theory/theory.html"),
}


def test_first_and_last_lines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.delenv("NO_COLOR", raising=False)
    (tmp_path / "it.toml").write_text(
        "task = 'digits'\nepochs = 1\ndata = 'synthetic'\nset = {batch = 512}\n"
        "[grid]\nlr = [0.1, 0.2]\n"
    )
    for name, (words, what, after) in COMMANDS.items():
        assert main(words) == 0
        first, *_, last = [line for line in capsys.readouterr().out.splitlines() if line]
        assert what in first, name
        assert after in last, name
