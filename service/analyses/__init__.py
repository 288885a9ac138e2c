"""Analyses: preview a change, find bad labels, cross-validate, tune, measure influence, choose what to label."""
