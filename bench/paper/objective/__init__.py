"""The K-prior as the paper has it, its rivals, and networks that are adapted from their memory alone."""
