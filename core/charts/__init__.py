"""SVG charts for the web pages, MLflow and reports: data in, SVG out.

The markup carries its own colours, as attributes, so it needs neither a style sheet nor scripts. A page that declares
the custom properties of `COLOURS`, such as `--adapted`, overrides them, for example in dark mode. `standalone` turns
a chart into a file.

>>> points = [Point(1, 0.91), Point(2, 0.93, low=0.92, high=0.94)]
>>> chart = line_chart([Series("adapted", points)], Axis("version", "count"), Axis("accuracy", "percent"))
>>> chart.startswith("<svg"), "92 %" in chart
(True, True)
"""

from core.charts.axes import Axis
from core.charts.bars import Bar, bar_chart, histogram_pair
from core.charts.frame import COLOURS, standalone
from core.charts.lines import Marker, Point, Series, curve, line_chart, sparkline
from core.charts.matrix import matrix_chart

__all__ = [
    "COLOURS",
    "Axis",
    "Bar",
    "Marker",
    "Point",
    "Series",
    "bar_chart",
    "curve",
    "histogram_pair",
    "line_chart",
    "matrix_chart",
    "sparkline",
    "standalone",
]
