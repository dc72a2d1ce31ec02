"""Networks as files for other runtimes, verified before they count."""
