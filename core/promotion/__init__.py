"""Promotion: the gate that compares a new version with older ones, and the decision to make it the champion."""
