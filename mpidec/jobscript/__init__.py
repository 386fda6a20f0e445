"""Command ``mpidec jobscript``: scripts for batch systems, to be copied and changed."""
