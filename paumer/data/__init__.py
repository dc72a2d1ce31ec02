"""The images: reading files, layouts on disk, data sets, checking, transforms."""
