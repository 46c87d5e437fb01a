"""Records become one frame of runs, groups of runs, tables, pictures and pages."""
