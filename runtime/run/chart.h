#pragma once
// A line chart as a piece of SVG that needs nothing else: axes, ticks, one line per series, and the points for the page's read-out.
#include <span>
#include <string>
#include <vector>

#include "runtime/run/curve.h"

namespace glim {

struct Series {
  std::string name;
  std::vector<CurvePoint> points;
  bool dotted = false;  // each point has a mark: few points, such as validations
};
struct Chart {
  std::string title, unit;
  std::vector<Series> series;  // at most 4
  bool from_zero = false;      // the value axis begins at 0
};
[[nodiscard]] std::string to_svg(const Chart& chart);

// & < > " ' as entities; control characters as their code point's picture.
[[nodiscard]] std::string escape_html(std::string_view text);
// Three or four digits and a unit prefix: "12.3k", "0.0021".
[[nodiscard]] std::string short_number(double value);

}  // namespace glim
