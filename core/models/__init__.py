"""Models: named, continuously updated predictors, each with a spec and a policy."""
