"""What the products of a matrix step cost, counted, and what that is on a GPU at its rates.

The counts are tested against those that torch counts in a step.
"""

from collections.abc import Sequence
from typing import NamedTuple

Shape = tuple[int, ...]

STEPS = 5  #: of Newton-Schulz
REFRESH_INTERVAL = 10
#: Bytes per parameter that the passes of a step over a matrix read and write, in float32: torch's
#: Muon, FilterMuon, what the eigenbasis adds (rotated tensors, v and its root).
MUON_BYTES, FILTER_MUON_BYTES, EIGENBASIS_BYTES = 56, 108, 64


class Products(NamedTuple):
    """Floating-point operations of one step, two for a multiply-add."""

    rough: float = 0.0  #: in bfloat16, where the device multiplies that fast
    full: float = 0.0  #: in float32
    qr: float = 0.0  #: of QR decompositions in float32, per step


class Device(NamedTuple):
    """Rates that a device reaches on products of this size: operations and bytes per second."""

    rough: float
    full: float
    qr: float
    memory: float


#: About half of what an H200 is sold for: 990e12 in bfloat16, 67e12 in float32, 4.8e12 bytes. A
#: QR decomposition is a chain of small steps: a hundredth of float32.
H200 = Device(500e12, 33e12, 0.67e12, 3.8e12)


def of_newton_schulz(short: int, long: int) -> float:
    """Five steps, of which two and two are taken at once where one side is longer."""
    if short == long:
        return 2 * 3 * short**3 * STEPS
    return 2 * (6 * short**2 * long + 11 * short**3)


def of_torchs_muon(rows: int, columns: int) -> Products:
    short, long = sorted((rows, columns))
    return Products(rough=2 * (2 * short**2 * long + short**3) * STEPS)


def of_filter_muon(rows: int, columns: int, eigenbasis: bool, longest: int = 1024) -> Products:
    short, long = sorted((rows, columns))
    rough = of_newton_schulz(short, long)
    if not eigenbasis:
        return Products(rough)
    full, qr = _of_basis((rows, columns), longest)
    if 1 < short <= longest:
        rough += 2 * short**3  # the basis joins the last product of Newton-Schulz
    if 1 < long <= longest:
        rough += 2 * short * long**2
    return Products(rough, full, qr)


def of_filter_soap(rows: int, columns: int, longest: int = 1024) -> Products:
    full, qr = _of_basis((rows, columns), longest)
    back = sum(2 * rows * columns * side for side in (rows, columns) if 1 < side <= longest)
    return Products(0.0, full + back, qr)


def _of_basis(shape: tuple[int, int], longest: int) -> tuple[float, float]:
    """Rotating gradient and trend, L and R, and their refresh; and its QR decompositions."""
    rows, columns = shape
    sides = [side for side in shape if 1 < side <= longest]
    every_step = sum(3 * 2 * rows * columns * side for side in sides)
    # L Q, Q^T Q_new, and v turned by its squares.
    refreshes = sum(2 * (2 * side**3 + rows * columns * side) for side in sides)
    decompositions = sum(8 / 3 * side**3 for side in sides)  # Q of side x side, formed
    return every_step + refreshes / REFRESH_INTERVAL, decompositions / REFRESH_INTERVAL


def milliseconds(
    shapes: Sequence[Shape], products: Sequence[Products], device: Device, moved: int
) -> float:
    """The time of a step whose products and element-wise passes come one after another."""
    count = sum(rows * columns for rows, columns in shapes)
    rough, full, qr = (sum(column) for column in zip(*products, strict=True))
    seconds = rough / device.rough + full / device.full + qr / device.qr
    return 1e3 * (seconds + moved * count / device.memory)
