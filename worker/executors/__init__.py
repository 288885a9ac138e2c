"""Where the long computations of jobs run: passes over the examples, and training of networks."""
