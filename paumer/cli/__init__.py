"""The command line: options, and one file for each group of commands."""
