"""Everything of the lab that touches torch, CUDA, files or a screen: kernels, measuring, the study, command line and panels.

It may import `cost_model`, never the reverse. Importing this package touches no GPU, file or environment variable.
"""

__version__ = "0.1.0"
