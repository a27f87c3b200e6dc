"""run_driver with more: small data, several processes, limits on memory, and other faults.

Every start is a fork of a process that has imported everything, so a start takes milliseconds.
"""

import errno
import os
import resource
import shutil
from pathlib import Path
from typing import Any

from runs import run_driver

plain_child = run_driver.child


class Fault(run_driver.Fault):
    """Beside those of run_driver: an error number like EROFS, and "remove" for the folder.

    An error persists: a disk that turned read-only stays so.
    """

    error = 0

    def check(self, name: str, *half: Any) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        super().check(name, *half)

    def trigger(self, name: str) -> None:
        if self.do == "remove":
            shutil.rmtree(OUT[0], ignore_errors=True)
        elif self.do.startswith("E"):
            self.error = getattr(errno, self.do)
            self.check(name)
        else:
            super().trigger(name)


OUT: list[str] = []


def child(request: dict[str, Any]) -> int:
    import torch.distributed as dist

    from sgdf_lab.data import synthetic

    OUT.append(request["out"])
    os.environ.update(request.get("env", {}))
    if "images" in request:
        synthetic.TRAIN, synthetic.TEST = request["images"]
    if "more_memory" in request:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + request["more_memory"]
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if "file_size" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"],) * 2)
    if "umask" in request:
        os.umask(request["umask"])
    if request["argv"][0] != "train":  # a command that takes no --out
        return command(request)
    try:
        return plain_child(request)
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


def command(request: dict[str, Any]) -> int:
    """Any other command, with its output in a file."""
    from sgdf_lab.cli.main import main

    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return main(request["argv"])


def serve() -> None:
    import pytorch_optimizer  # noqa: F401
    import torch.distributed.device_mesh
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401

    run_driver.child, run_driver.Fault = child, Fault  # type: ignore[misc]
    run_driver.serve()


if __name__ == "__main__":
    serve()
