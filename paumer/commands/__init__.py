"""THE COMMANDS: options in, one public call, a printed result."""
