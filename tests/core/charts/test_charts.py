"""Charts are valid SVG, place their data where the axes say, and show what they are given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from core.charts import (
    COLOURS,
    Axis,
    Bar,
    Marker,
    Point,
    Series,
    bar_chart,
    curve,
    histogram_pair,
    line_chart,
    matrix_chart,
    standalone,
)
from core.charts.axes import fit


def parse(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(chart)


def texts(chart: str, kind: str) -> list[str]:
    return ["".join(one.itertext()) for one in parse(chart).iter("text") if one.attrib["class"] == kind]


def test_points_are_placed_between_the_ticks_of_their_values() -> None:
    scale = fit(Axis(), [0.0, 10.0], 100.0, 0.0)
    assert [scale(value) for value in (0.0, 5.0, 10.0)] == [100.0, 50.0, 0.0]
    log = fit(Axis(log=True), [0.01, 1.0], 0.0, 100.0)
    assert [log(value) for value in (0.01, 0.1, 1.0)] == pytest.approx([0.0, 50.0, 100.0])


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        (timedelta(minutes=8), ["08:00", "08:02", "08:04", "08:06", "08:08"]),
        (timedelta(hours=20), ["12:00", "18:00", "2 Mar"]),
        (timedelta(days=4), ["2 Mar", "3 Mar", "4 Mar", "5 Mar"]),
    ],
)
def test_a_time_axis_has_ticks_at_round_times(span: timedelta, labels: list[str]) -> None:
    start = datetime(2026, 3, 1, 8, tzinfo=UTC)
    chart = line_chart([Series("a", [Point(start, 1.0), Point(start + span, 2.0)])], Axis(kind="time"))
    assert texts(chart, "x") == labels


def test_error_bands_alarms_and_rejected_versions_are_drawn() -> None:
    points = [Point(1, 0.9, 0.85, 0.95, "version 1"), Point(2, 0.92, 0.88, 0.96, "version 2")]
    markers = [Marker(1, "alarm"), Marker(2, "alarm"), Marker(2, "rejected", "warn", y=0.7)]
    chart = line_chart([Series("accuracy", points)], Axis(kind="count"), markers=markers)
    drawn = parse(chart)
    assert sum(path.attrib.get("class") == "band" for path in drawn.iter("path")) == 1
    assert sum(path.attrib.get("class") == "marker" for path in drawn.iter("path")) == 3
    assert texts(chart, "legend") == ["● accuracy \u2003│ alarm \u2003✕ rejected"]
    assert "version 2" in [title.text for title in drawn.iter("title")]
    assert float(texts(chart, "y")[0]) <= 0.7  # the axis covers bands and markers


def test_a_curve_covers_the_unit_square() -> None:
    chart = curve([Series("ROC", [Point(0.2, 0.6), Point(0.5, 0.9)])], "false positives", "true positives")
    assert texts(chart, "x") == texts(chart, "y") == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert texts(chart, "label") == ["false positives", "true positives"]


def test_bars_start_at_zero_and_long_labels_are_shortened() -> None:
    long = "a" * 100
    chart = bar_chart([Bar("b", 2.0), Bar("c", -1.0), Bar(long, 1.0, "bad", 0.5, 1.5)])
    up, down, _ = [(float(r.attrib["x"]), float(r.attrib["width"])) for r in parse(chart).iter("rect")]
    assert up[0] == pytest.approx(down[0] + down[1])
    assert up[1] == pytest.approx(2 * down[1], abs=0.2)
    assert [label for label in texts(chart, "y") if label.startswith("a")] == ["a" * 27 + "…"]
    assert f"{long}: 1" in [title.text for title in parse(chart).iter("title")]


def test_histograms_of_different_sizes_are_compared_as_fractions() -> None:
    chart = histogram_pair(["low", "high"], {"trained on": [30, 10], "last 7 days": [1, 3]})
    titles = [title.text for title in parse(chart).iter("title")]
    assert titles == [
        "trained on, low: 75.0 %",
        "last 7 days, low: 25.0 %",
        "trained on, high: 25.0 %",
        "last 7 days, high: 75.0 %",
    ]
    assert texts(chart, "x") == ["low", "high"]


@pytest.mark.parametrize(
    "chart",
    [
        line_chart([]),
        line_chart([Series("one point", [Point(1, 0.0)])]),
        line_chart([Series("constant", [Point(1, 5.0), Point(2, 5.0)])], y=Axis(log=True)),
        bar_chart([]),
        bar_chart([Bar("nothing", 0.0)]),
        histogram_pair([], {"a": [], "b": []}),
        histogram_pair(["empty"], {"a": [0], "b": [0]}),
        matrix_chart([[0] * 30] * 30, [str(i) for i in range(30)], ("predicted", "true")),
    ],
)
def test_little_data_and_much_data_are_drawn(chart: str) -> None:
    assert parse(standalone(chart)).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_file_is_opaque_and_has_fixed_colours() -> None:
    chart = line_chart([Series("a", [Point(1, 1.0), Point(2, 2.0)])], title="a > b")
    file = standalone(chart)
    assert "var(--adapted, " in chart
    assert "var(" not in file
    first = next(iter(parse(file)))
    assert (first.attrib["fill"], first.attrib["width"]) == (COLOURS["card"], "100%")
