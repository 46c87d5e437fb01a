"""Programs for the maintenance of the project."""
