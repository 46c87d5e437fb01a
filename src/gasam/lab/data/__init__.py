"""Reading, downloading and splitting of data."""
