"""Figures of explanations, chains and evaluations.

Every function returns a `matplotlib.figure.Figure` (or HTML), shows nothing by itself and leaves pyplot alone. Maps
are drawn as they are: unsigned ones in a sequential colour map, signed ones in a diverging one centred at zero, and
what cannot be seen in the colours (a constant map, one without positive values, NaN) is written on them.
"""

from xattn.viz._reading import DIVERGING as DIVERGING
from xattn.viz._reading import as_picture as as_picture
from xattn.viz.bounce_film import bounce_film as bounce_film
from xattn.viz.chain_graph import chain_graph as chain_graph
from xattn.viz.comparison import comparison as comparison
from xattn.viz.critical_difference import critical_difference as critical_difference
from xattn.viz.curves import curves as curves
from xattn.viz.grid import grid as grid
from xattn.viz.head_histogram import head_histogram as head_histogram
from xattn.viz.lambda2_heatmap import lambda2_heatmap as lambda2_heatmap
from xattn.viz.layer_curves import layer_curves as layer_curves
from xattn.viz.overlay import overlay as overlay
from xattn.viz.prediction_layers import prediction_layers as prediction_layers
from xattn.viz.relevance_layers import relevance_layers as relevance_layers
from xattn.viz.tokenrank_layers import tokenrank_layers as tokenrank_layers
from xattn.viz.tokens import token_grid as token_grid
from xattn.viz.tokens import tokens as tokens
from xattn.viz.tokens import tokens_html as tokens_html
