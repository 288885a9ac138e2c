"""The memorable past: which rows are kept, and what each stands for."""
