"""Which cells of a layer stay when it may keep so many: those that a proxy query reads most."""

from omni_core.pruning.contribution import contribution, proxy_shares
from omni_core.pruning.keeping import keep_best
from omni_core.pruning.masked_layers import masked_layers
from omni_core.pruning.proxy_query import last_text, newest, proxy_query
from omni_core.pruning.subblocks import keep_subblocks

__all__ = [
    "contribution",
    "keep_best",
    "keep_subblocks",
    "last_text",
    "masked_layers",
    "newest",
    "proxy_query",
    "proxy_shares",
]
