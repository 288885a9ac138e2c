"""Making a version: the model as it stands, the ways to the next version, its certificate."""
