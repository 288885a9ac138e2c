"""Models: created, described, given another policy, deleted; and changed in regularizer, architecture or loss."""
