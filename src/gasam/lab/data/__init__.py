"""Files and folders of data: where they lie, how they are read, split and fetched."""
