"""The training: one for many pause configurations."""
