"""The routes of the API, a file per domain.

models           the models that can be used
text             translations, continuations, readings, similarities of texts
images           images, their classes, features and captions
interpretation   what can be requested about an inspection; saliency, patching, comparisons of models
build            attention by hand, position vectors, memories with decay
runs             trainings
"""
