"""Training runs: what decides one, the loop, its checkpoints."""
