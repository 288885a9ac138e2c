"""What happens to a model over time and concerns several nouns: the end of jobs, retention, withdrawal, deletion."""
