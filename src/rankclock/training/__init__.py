"""What runs inside or right before a training job: verify, preflight, the rank clock."""
