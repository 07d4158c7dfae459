"""The lectures' sentences, words that attend to words, and linear models as a baseline."""
