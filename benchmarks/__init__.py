"""Measurements against other packages and programs by hand, for those who change the package; see `__main__`."""
