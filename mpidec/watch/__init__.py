"""Command ``mpidec watch``: runs and trainings, while their files are written."""
