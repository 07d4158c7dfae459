"""A training of your own file: finetune, and the recipe that a file needs."""
