"""Where the long work of jobs is computed: passes over the examples, and trainings of networks."""
