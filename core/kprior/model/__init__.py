"""What a model is: encoder, body and family, and its regularizer. All of the engine that prediction needs.

The folder is copied as it is into models published to MLflow (see `core/inference`): it imports nothing of ours outside
itself, and its own modules by relative names.
"""
