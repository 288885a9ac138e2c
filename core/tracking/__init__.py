"""Tracking: what MLflow shows of models, jobs and versions. MLflow may be down; what it missed is published later."""
