"""Figures of explanations, chains and evaluations.

Every function returns a `matplotlib.figure.Figure` (or HTML), shows nothing by itself and leaves pyplot alone. Maps
are drawn as they are: unsigned ones in a sequential colour map, signed ones in a diverging one centred at zero, and
what cannot be seen in the colours (a constant map, one without positive values, NaN) is written on them.
"""

from xattn.viz._reading import DIVERGING as DIVERGING
from xattn.viz._reading import as_picture as as_picture
from xattn.viz.comparison import comparison as comparison
from xattn.viz.grid import grid as grid
from xattn.viz.overlay import overlay as overlay
from xattn.viz.tokens import token_grid as token_grid
from xattn.viz.tokens import tokens as tokens
from xattn.viz.tokens import tokens_html as tokens_html
