"""Starts `sgdf` again and again, and imports torch only once.

A server that runs no torch operation itself: it forks a child for every start, which calls the
command line. A fault can be injected into one of the child's disk operations, and all of them can
be traced. A request and its answer are one line of JSON each, on standard input and output.
Modules named as arguments are imported before the first start too.
"""

import builtins
import errno
import gc
import importlib
import io
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRAPPED = ("open", "replace", "fsync", "mkdir", "unlink", "write", "ftruncate")  # of os


class Fault:
    """Counts the child's disk operations by name, like `replace last.pt`, and fails at one."""

    def __init__(self, op: str = "", nth: int = 0, do: str = "", trace: str | None = None) -> None:
        self.op, self.nth, self.do, self.trace = op, nth, do, trace
        self.seen: Counter[str] = Counter()
        self.disk_is_full = False

    def check(self, name: str, half: Callable[[], object] = lambda: None) -> None:
        """Called before every operation; `half` does half of it, where that is possible."""
        if self.disk_is_full and not name.startswith("unlink"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.trace:
            with io.open(self.trace, "a") as file:  # noqa: UP020, the other open is wrapped
                file.write(name + "\n")
        is_here = name == self.op and self.seen[name] == self.nth
        self.seen[name] += 1
        if is_here:
            if self.do in ("SIGKILL", "full", "sleep"):  # the operation is never completed
                half()
            self.trigger(name)

    def trigger(self, name: str) -> None:
        if self.do == "full":
            self.disk_is_full = True
            self.check(name)
        elif self.do == "sleep":
            while True:  # until the test kills this process
                signal.pause()
        else:
            for word in self.do.split():
                os.kill(os.getpid(), getattr(signal, word))


class File:
    """A file whose writes can fail half way."""

    def __init__(self, file: Any, name: str, fault: Fault) -> None:
        self.file, self.name, self.fault = file, name, fault

    def write(self, text: Any) -> int:
        def half() -> None:
            self.file.write(text[: len(text) // 2])
            self.file.flush()

        self.fault.check(f"write {self.name}", half)
        return int(self.file.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


def inject(out: Path, fault: Fault) -> None:
    """Check for the fault before every disk operation on something below `out`."""

    def name_of(what: Any) -> str | None:
        place = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
        path = Path(place).absolute()
        if not path.is_relative_to(out):
            return None
        return "folder" if path.parent == out else path.name

    def wrapped(word: str) -> Callable[..., Any]:
        operation = getattr(os, word)

        def check_and_do(what: Any, *rest: Any, **others: Any) -> Any:
            name = name_of(rest[0] if word == "replace" else what)
            if name is not None:
                fault.check(f"{word} {name}")
            return operation(what, *rest, **others)

        return check_and_do

    def open_wrapped(what: Any, mode: str = "r", *rest: Any, **others: Any) -> Any:
        name = None if mode in ("r", "rb") else name_of(what)
        if name is None:
            return io.open(what, mode, *rest, **others)  # noqa: UP020
        fault.check(f"open {name}")
        return File(io.open(what, mode, *rest, **others), name, fault)  # noqa: UP020

    for word in WRAPPED:
        setattr(os, word, wrapped(word))
    builtins.open = open_wrapped


def child(request: dict[str, Any]) -> int:
    """One start of the command line, with its output in a file."""
    import torch

    from sgdf_lab.cli.main import main
    from sgdf_lab.runs import run_folder

    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    os.environ.update(request.get("env", {}))
    if "before" in request:  # a function of the tests, like lab.tasks.gan_driver:few_images
        sys.path.insert(0, str(Path(__file__).parents[1]))
        module, _, names = request["before"].partition(":")
        for name in names.split():
            getattr(importlib.import_module(module), name)()
    if request.get("one_epoch"):  # as if a signal had arrived
        from sgdf_lab.training.distributed import Team

        Team.any = lambda self, flag: True  # type: ignore[method-assign]
    run_folder.SAVING_SHARE = request.get("saving_share", run_folder.SAVING_SHARE)
    if not request.get("sync"):  # what a killed process wrote survives without it
        os.fsync = lambda descriptor: None
    if request.get("fault"):
        inject(Path(request["out"]), Fault(**request["fault"]))
    return main([*request["argv"], "--out", request["out"]])


def fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = child(request)
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    import torch._dynamo  # noqa: F401, every optimizer imports it

    import sgdf_lab.cli.main
    import sgdf_lab.runs.session
    import sgdf_lab.tasks.classify  # noqa: F401

    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a child that collects would copy all of it
    print("ready", flush=True)
    running = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
            running.discard(request["wait"])
        else:
            answer = fork(request)
            running.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in running:  # the tests are over
        os.kill(pid, signal.SIGKILL)
    os._exit(0)  # an orderly exit takes a second


if __name__ == "__main__":
    serve()
