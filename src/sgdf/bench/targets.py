"""The targets that our optimizers were built for, and whether a measurement meets them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sgdf.bench import contestants
from sgdf.bench.costs import disturbed
from sgdf.bench.shapes import LISTS


@dataclass(frozen=True)
class Target:
    """A limit for one list on one device; without a contestant, for the worst fused path of ours.

    The fields are keys of the JSON record, where targets are called bars.
    """

    device: str
    parameters: str
    contestant: str | None
    quantity: str
    limit: float
    says: str

    @property
    def at_least(self) -> bool:
        return self.quantity == "of_copy"

    def check(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Compare the rows of the list with the limit; busy machines meet and miss nothing."""
        fused = {c.name for c in contestants.CONTESTANTS if c.ours and c.fused}
        names = fused if self.contestant is None else {self.contestant}
        values = [row[self.quantity] for row in rows if row["name"] in names]
        measured = max((value for value in values if value is not None), default=None)
        met, verdict = None, "not measured"
        if measured is not None and disturbed(self.device, rows):
            verdict = f"measured {measured:.3g} on a busy machine: inconclusive"
        elif measured is not None:
            met = measured >= self.limit if self.at_least else measured <= self.limit
            missed = f"missed by {abs(measured / self.limit - 1):.1%}"
            verdict = f"measured {measured:.3g}: {'met' if met else missed}"
        sentence = f"target: {LISTS[self.parameters].title}: {self.says}: {verdict}"
        return {**asdict(self), "measured": measured, "met": met, "sentence": sentence}


FUSED, INT8 = "sgdf-fused", "sgdf-fused-int8-state"
TARGETS = (
    Target("cuda", "resnet50", FUSED, "times_sgd_fused", 0.5, "SGDF fused <= 0.5 x SGD fused"),
    Target("cuda", "vit-l", FUSED, "times_adamw_fused", 0.6, "SGDF fused <= 0.6 x AdamW fused"),
    Target("cuda", "gpt", FUSED, "of_copy", 0.95, "SGDF fused >= 0.95 of the copy bandwidth"),
    Target("cuda", "gpt", FUSED, "times_adamw_fused", 0.76, "SGDF fused <= 0.76 x AdamW fused"),
    Target("cuda", "gpt", INT8, "times_sgd_fused", 0.75, "SGDF int8 state <= 0.75 x SGD fused"),
    Target("cuda", "gpt", INT8, "state_bytes", 2.1, "SGDF int8 state <= 2.1 bytes per parameter"),
    *(
        Target("cuda", name, None, "extra_memory_percent", 1, "extra memory of fused steps <= 1 %")
        for name in ("resnet50", "vit-l", "gpt")
    ),
    Target("cpu", "one-tensor", FUSED, "times_adamw_fused", 1.15, "SGDF <= 1.15 x AdamW fused"),
    Target("cpu", "resnet18", FUSED, "times_adamw_fused", 1.5, "SGDF <= 1.5 x AdamW fused"),
)
