"""``python -m paumer``."""

from paumer.cli import main

main()
