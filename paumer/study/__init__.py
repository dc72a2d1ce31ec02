"""Measuring and choosing."""
