"""Tables and text files as people have them: formats, columns, and what a file holds."""
