"""What layers represent: CKA, features, receptive fields, projections, pictures of weights."""
