"""Command ``mpidec restart``: a job is started again while it gets further."""
