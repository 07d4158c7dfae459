"""The evaluation of models, with a file for each kind of task."""
