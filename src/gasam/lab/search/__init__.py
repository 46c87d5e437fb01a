"""The search for the size of a walk on the validation split: `gasam tune`."""
