"""Training one network in several processes, one for each GPU."""
