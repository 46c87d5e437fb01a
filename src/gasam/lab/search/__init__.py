"""The search of `gasam tune` for the size of a walk, on the validation split."""
