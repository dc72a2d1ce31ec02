"""Procedural street scenes: a photograph-like image and its labels from a seed."""
