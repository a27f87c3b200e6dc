"""Image generation: WGAN-GP, measured by FID."""
