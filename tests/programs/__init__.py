"""Programs that tests start, and that can be run by hand."""
