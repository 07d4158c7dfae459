"""evaluate, by what the data is."""
