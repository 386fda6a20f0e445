"""What several tests use: launches, random draws, stand-ins, and programs that tests start."""
