"""Names and defaults that the help shows, written out: the registries themselves import torch.

`tests/cli/test_start.py` compares every one of them with its registry.
"""

TASKS = (
    *("digits", "fashion-mnist", "cifar10", "cifar100", "voc", "wgan-gp"),
    *("text", "enwik8", "text8", "imagenet", "images"),
    *("finetune-cifar10", "finetune-cifar100", "finetune-pets"),
    *("finetune-flowers102", "finetune-food101", "finetune-imagenet"),
)

#: The lab's own classifiers, of small images.
CLASSIFIERS = ("vgg11", "resnet18", "resnet34", "densenet121", "vit-small-cifar", "cnn", "mlp")

#: Models of the other tasks, by the tasks that take them.
OTHER_MODELS = {
    "imagenet": (
        *("resnet18", "resnet34", "resnet50", "vgg11-bn", "vgg13-bn", "densenet121"),
        *("densenet161", "resnet-tiny"),
    ),
    "finetune-*": ("vit-b32", "vit-l32", "vit-tiny"),
    "voc": ("fasterrcnn", "fasterrcnn-tiny"),
    "wgan-gp": ("dcgan", "dcgan-tiny"),
    "text, enwik8, text8": ("gpt-tiny", "gpt-11m", "gpt-124m"),
}

OPTIMIZERS = (
    *("sgdf", "filter-adam", "filter-adamw", "sgd", "sgd-ema", "sgd-cm", "adam", "adamw"),
    *("radam", "rmsprop", "msvag", "adabound", "adabelief", "yogi", "padam", "fromage"),
    *("lion", "eadam", "sophia-g", "nadam", "nadamw", "adafactor", "muon", "soap"),
    *("shampoo", "schedule-free-sgd", "schedule-free-adamw", "ademamix", "mars"),
    *("cautious-adamw", "cautious-lion", "adopt", "laprop", "adan", "prodigy"),
    "grokfast-adamw",
)

#: Settings of single tasks, for --set.
TASK_SETTINGS = (
    *("augment", "classes", "context", "corpus", "critic_norm", "eval_every", "eval_tokens"),
    *("features", "fid_every", "fid_samples", "lists", "names", "size", "tokenizer", "weights"),
)

DATASETS = (
    *("digits", "fashion-mnist", "cifar10", "cifar100", "imagenet", "pets", "flowers102"),
    *("food101", "voc", "text", "enwik8", "text8"),
)

SEARCHES = ("lr-grid", "budget")  # of sgdf sweep --preset
PRECISIONS = ("tf32", "bf16", "fp32")
DATA = ("real", "synthetic")
LONGEST_NAME = 255  # bytes, of a file or folder

# Of sgdf bench step.
LISTS = ("one-tensor", "resnet18", "resnet50", "vit-l", "gpt", "tiny")
DEFAULT_LISTS = {"cpu": LISTS[:3], "cuda": LISTS[2:5]}
CONTESTANTS = (
    *("sgd-fused", "sgd-foreach", "adamw-fused", "adamw-foreach"),
    *("torchao-adamw8bit", "bitsandbytes-adamw8bit"),
    *("sgdf-loop", "sgdf-foreach", "sgdf-fused", "sgdf-fused-constant"),
    *("sgdf-fused-bf16-state", "sgdf-fused-int8-state"),
    *("filteradam-foreach", "filteradam-fused", "filteradam-fused-int8-state"),
    *("filteradamw-fused-derived", "filteradamw-fused-derived-int8-state"),
    *("filteradamw-fused-constant", "wienerfilter-fused", "momentum-fused"),
    *("adamw-fused-bf16", "sgdf-fused-bf16", "sgdf-fused-bf16-random"),
    "filteradamw-fused-derived-bf16-int8-state-random",
)
WITH_TARGETS = "targets"
REPEATS = 30
SECONDS = 2.0
