"""The images: labels, procedural street scenes, data sets on disk and their transforms."""
