"""Image generation: WGAN-GP, measured by FID."""

from sgdf_lab.tasks.registry import Metric, paper_task

TASKS = (
    paper_task(
        "wgan-gp",
        "dcgan",
        data="cifar10",
        trainer=f"{__name__}.wgan_gp",
        models=("dcgan", "dcgan-tiny"),
        metrics=(Metric("fid", "FID", unit="", lower_is_better=True),),
        options={
            "features": "inception",  # the network whose features FID compares
            "fid_samples": 64000,
            "fid_every": 0,  # epochs; after the last it is always measured
            "critic_norm": "batch",  # or layer
        },
    ),
)
