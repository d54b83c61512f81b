"""cost_model: what fusing and keeping a draft head's vocabulary projection on chip costs and gives, in closed forms and data.

Pure analysis: no torch, no widgets, no `wts_lab`. NumPy, SciPy, pandas and pyarrow are imported where a function needs
them, so that importing this package is quick and touches no GPU, file or environment variable. The names below are those
that most callers start from; the rest live in the modules named for their topic.
"""

from cost_model.errors import BadInput
from cost_model.gpu import Gpu, list_gpus, load_gpu, recognise_gpu
from cost_model.head import Head, list_heads, load_head
from cost_model.workload import Workload

__all__ = [
    "BadInput", "Gpu", "Head", "Workload", "list_gpus", "list_heads", "load_gpu", "load_head", "recognise_gpu",
]
