"""Images as training data: files, folders, arrays in memory, captions, and their preprocessing."""
