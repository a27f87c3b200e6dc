"""The targets that our optimizers were built for, and whether a measurement meets them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sgdf_lab.bench import contestants
from sgdf_lab.bench.costs import disturbed
from sgdf_lab.bench.shapes import LISTS


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
            verdict = f"measured {measured:.3g}: {'met' if met else 'missed'}"
            if not met and self.limit:
                verdict += f" by {abs(measured / self.limit - 1):.1%}"
        sentence = f"target: {LISTS[self.parameters].title}: {self.says}: {verdict}"
        return {**asdict(self), "measured": measured, "met": met, "sentence": sentence}


FUSED, INT8, CONSTANT = "sgdf-fused", "sgdf-fused-int8-state", "sgdf-fused-constant"
DERIVED, DERIVED_INT8 = "filteradamw-fused-derived", "filteradamw-fused-derived-int8-state"
DERIVED_BF16 = "filteradamw-fused-derived-bf16-int8-state-random"
CONSTANT_ADAM, FILTER = "filteradamw-fused-constant", "wienerfilter-fused"
SGD, ADAMW, COPY = "times_sgd_fused", "times_adamw_fused", "of_copy"
EXTRA = "extra_memory_bytes_in_all"
TARGETS = (
    Target("cuda", "resnet50", FUSED, SGD, 0.5, "SGDF fused <= 0.5 x SGD fused"),
    Target("cuda", "vit-l", FUSED, ADAMW, 0.6, "SGDF fused <= 0.6 x AdamW fused"),
    Target("cuda", "gpt", FUSED, COPY, 0.95, "SGDF fused >= 0.95 of the copy bandwidth"),
    Target("cuda", "gpt", FUSED, ADAMW, 0.76, "SGDF fused <= 0.76 x AdamW fused"),
    Target("cuda", "gpt", INT8, SGD, 0.75, "SGDF int8 state <= 0.75 x SGD fused"),
    Target("cuda", "gpt", INT8, "state_bytes", 2.1, "SGDF int8 state <= 2.1 bytes per parameter"),
    Target("cuda", "gpt", CONSTANT, SGD, 0.87, "SGDF constant gain <= 0.87 x SGD fused"),
    Target("cuda", "gpt", CONSTANT, COPY, 0.97, "SGDF constant gain >= 0.97 of the copy bandwidth"),
    Target("cuda", "resnet50", DERIVED, ADAMW, 0.5, "FilterAdamW derived <= 0.5 x AdamW fused"),
    Target("cuda", "gpt", DERIVED, ADAMW, 0.82, "FilterAdamW derived <= 0.82 x AdamW fused"),
    Target("cuda", "gpt", DERIVED, COPY, 0.95, "FilterAdamW derived >= 0.95 of the copy bandwidth"),
    Target("cuda", "gpt", DERIVED, "state_bytes", 8.0, "FilterAdamW derived <= 8 bytes of state"),
    Target("cuda", "gpt", DERIVED_INT8, ADAMW, 0.52,
           "FilterAdamW derived, int8 state <= 0.52 x AdamW fused"),
    Target("cuda", "gpt", DERIVED_INT8, "state_bytes", 2.1,
           "FilterAdamW derived, int8 state <= 2.1 bytes per parameter"),
    Target("cuda", "gpt", DERIVED_BF16, ADAMW, 0.5,
           "FilterAdamW derived, bf16 parameters, int8 state <= 0.5 x AdamW fused in bf16"),
    Target("cuda", "gpt", CONSTANT_ADAM, ADAMW, 0.82,
           "FilterAdamW constant gain <= 0.82 x AdamW fused"),
    Target("cuda", "gpt", FILTER, COPY, 0.95, "WienerFilter alone >= 0.95 of the copy bandwidth"),
    *(
        Target("cuda", name, None, EXTRA, 0, "bytes that a fused step allocates <= 0")
        for name in ("resnet50", "vit-l", "gpt")
    ),
    Target("cpu", "one-tensor", FUSED, ADAMW, 1.15, "SGDF <= 1.15 x AdamW fused"),
    Target("cpu", "one-tensor", DERIVED, ADAMW, 1.1, "FilterAdamW derived <= 1.1 x AdamW fused"),
    Target("cpu", "one-tensor", FILTER, ADAMW, 1.0, "WienerFilter alone <= 1.0 x AdamW fused"),
    Target("cpu", "resnet18", FUSED, ADAMW, 1.5, "SGDF <= 1.5 x AdamW fused"),
)  # fmt: skip

#: What the contestants with a target are compared with, and one that is reported without a target.
BESIDE = (
    "sgd-fused",
    "adamw-fused",
    "adamw-fused-bf16",
    "torchao-adamw8bit",
    "bitsandbytes-adamw8bit",
    "filteradam-fused-int8-state",
)


def compared_by_targets(device: str, list_name: str) -> set[str]:
    """The names of the contestants that the targets of a list compare; empty if it has none."""
    targets = [t for t in TARGETS if (t.device, t.parameters) == (device, list_name)]
    named = {t.contestant for t in targets if t.contestant is not None}
    return named | set(BESIDE) if named else set()
