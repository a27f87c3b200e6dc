"""How the command ends: its exit code, and as one of several processes no Python shutdown."""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

SCRIPT = """
import atexit, sys
from sgdf_lab.cli import main

main.main = lambda: 3
atexit.register(print, "orderly")
print("the last line")
main.run()
"""


def test_the_installed_command_ends_as_python_m_does():
    (command,) = entry_points(group="console_scripts", name="sgdf")
    assert command.value == "sgdf_lab.cli.main:run"


@pytest.mark.parametrize(
    ("processes", "printed"), [(1, ["the last line", "orderly"]), (2, ["the last line"])]
)
def test_a_team_skips_the_shutdown_that_threads_of_gloo_could_abort(processes, printed):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={**os.environ, "WORLD_SIZE": str(processes)},
    )
    assert (ended.returncode, ended.stdout.splitlines()) == (3, printed), ended.stderr
