"""mpidec inside the trainers of other packages; import what you need by its name, such as
`mpidec.integrations.lightning`.
"""
