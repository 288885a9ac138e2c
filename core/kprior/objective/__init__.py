"""What is minimised: tasks, terms, the K-prior, and transfer between architectures."""
