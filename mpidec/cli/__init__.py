"""What all commands share: parsing, exit status, signals, progress."""
