"""What is minimised: its terms, and what they make of the past and of the tasks."""
