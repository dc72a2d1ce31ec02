"""``python -m paumer``."""

from paumer.cli.main import main

main()
