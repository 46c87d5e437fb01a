"""Where many runs are computed."""
