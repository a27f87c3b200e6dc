"""Language modelling: a decoder-only transformer predicts the next token of a text."""

from sgdf.lab.models.gpt import SIZES
from sgdf.lab.tasks.registry import Metric, Task

LOSS = Metric(
    "val_loss", "validation loss", unit="nats/token", lower_is_better=True, digits=3, grain=0.05
)
BITS = Metric("bits_per_byte", "bits per byte", unit="", lower_is_better=True, digits=3)


def text_task(name: str, **options: str) -> Task:
    return Task(
        name,
        "gpt-11m",
        epochs=20,  # evaluations: 2000 steps
        batch=64,  # windows
        trainer=f"{__name__}.trainer",
        models=tuple(SIZES),
        of_paper=False,
        tokens_of={name: size.context for name, size in SIZES.items()},
        schedule="cosine",
        clip=1.0,
        metrics=(LOSS, BITS),
        options={
            "eval_every": 100,  # steps between evaluations
            "eval_tokens": 1 << 18,  # of the validation text
            "context": 0,  # tokens in a window; 0: the model's
            "tokenizer": "bytes",  # or a tokenizer.json
            **options,
        },
    )


TASKS = (text_task("text", corpus=""), text_task("enwik8"), text_task("text8"))
