"""The lab's screen: requests, figures, panels and background runs.

`requests` holds what a user may ask for, `figures` draws one result each, `live` runs a walk (or replays a record) in the
background and `panels` ties the three to controls.  Nothing here computes: numbers come from `cost_model`, times from
`wts_lab.bench`.  Importing this package imports neither torch nor a widget library; the panels load theirs when they are built.
"""
