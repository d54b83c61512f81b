"""Everything of the lab that touches torch, CUDA, files or a screen: kernels, measuring, the study, command line and panels.

It may import `cost_model`, never the reverse. Importing this package touches no GPU, file or environment variable.
"""

__version__ = "0.1.0"


def load_settings(path, head=None, **options):
    """A prepared `wts_lab.walk.Walk` as a settings file says: see `wts_lab.deploy.load_settings`, which this calls with what it is given."""
    from wts_lab import deploy

    return deploy.load_settings(path, head, **options)
