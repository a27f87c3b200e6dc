"""Write the golden runs of this version: `python lab/tests/golden/make_runs.py`.

Once per release (CONTRIBUTING.md). Every later version has to load them, so an existing folder is
never written again.

    0.1.0/finished/RUN/         a run of the lab that has ended, without its checkpoint
    0.1.0/interrupted/RUN/      the same run, killed in its third epoch
"""

import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import sgdf_lab  # noqa: E402
from runs.commands import Server, fault, folder_in  # noqa: E402

TRAIN = ("train", "digits", "--data", "synthetic", "--epochs", "4", "--set", "batch=64")


def main() -> None:
    """One run that ends and one that is killed, with nothing of this machine's paths in them."""
    target = HERE / sgdf_lab.__version__
    target.mkdir()
    server = Server()
    with tempfile.TemporaryDirectory() as temporary:
        kill = fault("replace previous.pt", "SIGKILL", nth=1)  # the third epoch is not saved
        for out, request in (("finished", {}), ("interrupted", kill)):
            server.run(TRAIN, Path(temporary, out), **request)
            run = folder_in(Path(temporary, out))
            left_out = ["lock", "previous.pt", "*.new", *(["last.pt"] if not request else [])]
            folder = target / out / run.name
            shutil.copytree(run, folder, ignore=shutil.ignore_patterns(*left_out))
            environment = folder / "env.json"
            environment.write_text(environment.read_text().replace(f"{temporary}/", ""))
    server.process.stdin.close()
    server.process.wait()
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
