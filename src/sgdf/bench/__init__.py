"""What a step of an optimizer costs in time and memory, side by side (`sgdf bench`)."""
