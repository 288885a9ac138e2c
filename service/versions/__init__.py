"""Versions: listed, promoted, compared, downloaded."""
