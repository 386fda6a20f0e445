"""What BlueFog's notebooks import of its commands."""
