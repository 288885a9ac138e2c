"""The parts of a model: encoder, body, family and regularizer. This is all of the engine that prediction needs.

`core/inference` copies this folder unchanged into models published to MLflow. It therefore imports nothing else of the
project, and its own modules by relative names.
"""
