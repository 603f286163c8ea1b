"""Evidence to findings. Pure."""
