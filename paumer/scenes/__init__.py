"""Procedural street scenes: a photograph-like picture and its labels from a seed."""
