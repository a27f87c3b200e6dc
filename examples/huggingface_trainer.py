"""Hugging Face Trainer: `optimizer_cls_and_kwargs`, with the settings of `TrainingArguments`.

python examples/huggingface_trainer.py
"""

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the tiny model is made here: nothing to download

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from sgdf import FilterAdamW
from sgdf.integrations.huggingface import optimizer

TINY = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=16,
)


def counting(size: int = 64, length: int = 16) -> list[dict[str, torch.Tensor]]:
    """Sequences that count up from a random start, modulo 32."""
    starts = torch.randint(32, (size, 1), generator=torch.Generator().manual_seed(0))
    tokens = (starts + torch.arange(length)) % 32
    return [{"input_ids": row, "labels": row} for row in tokens]


def trainer(folder: str, kind=FilterAdamW, steps: int = 24, **settings) -> Trainer:
    """A Trainer with one of our optimizers; `settings` are the optimizer's."""
    args = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        adam_beta2=0.95,
        weight_decay=0.1,  # this one counts: the Trainer overrides the optimizer's own
        lr_scheduler_type="cosine",
        warmup_steps=4,
        max_grad_norm=1.0,
        save_steps=steps // 2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
    )
    torch.manual_seed(0)
    return Trainer(
        model=LlamaForCausalLM(TINY),
        args=args,
        train_dataset=counting(),
        optimizer_cls_and_kwargs=optimizer(args, kind, **settings),  # the line that changes
    )


def losses_of(made: Trainer) -> list[float]:
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def main() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        first = trainer(folder)
        first.train()
        again = trainer(folder)
        again.train(resume_from_checkpoint=f"{folder}/checkpoint-12")
    losses = losses_of(first)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, resumed -> {losses_of(again)[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
