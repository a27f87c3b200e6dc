"""Ctrl-C and SIGTERM: stop in an orderly way."""

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


class StopRequest:
    """Becomes true once the process was asked to stop."""

    requested = False


@contextlib.contextmanager
def stop_on_signal(notify: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second one raises KeyboardInterrupt."""
    stop = StopRequest()

    def handle(signum: int, frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True
        with contextlib.suppress(RuntimeError):  # the signal may interrupt another print
            notify("stopping: once more stops without saving")

    with handling((signal.SIGINT, signal.SIGTERM), handle):
        yield stop


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with handling((signal.SIGTERM,), interrupt):
        yield


@contextlib.contextmanager
def handling(signals: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Install a handler for the block. Only the main thread can: elsewhere this does nothing."""
    try:
        before = {number: signal.signal(number, handler) for number in signals}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
