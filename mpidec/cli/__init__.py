"""Infrastructure of all commands: parsing, exit status, signals, progress."""
