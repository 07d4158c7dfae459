"""The attention of models that are not ours: interception of the calls that compute it, and their modules' names."""
