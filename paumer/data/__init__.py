"""The pictures: labels, procedural street scenes, data sets on disk and their transforms."""
