"""How far a model can be from its retrain: bounds of GLMs, audits of networks."""
