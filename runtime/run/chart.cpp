#include "runtime/run/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace glim {
namespace {

constexpr double kWidth = 560, kHeight = 240, kLeft = 62, kRight = 14, kTop = 16, kBottom = 30;

struct Axis {
  double low = 0, high = 1;
  [[nodiscard]] double at(double value) const { return (value - low) / (high - low); }
};

// About `count` round numbers across the axis.
std::vector<double> ticks(const Axis& axis, int count) {
  const double raw = (axis.high - axis.low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  const double factor = raw / power;
  const double step = power * (factor < 1.5 ? 1 : factor < 3.5 ? 2 : factor < 7.5 ? 5 : 10);
  std::vector<double> out;
  const double first = std::ceil(axis.low / step - 1e-9);
  for (int k = 0; k <= 2 * count && (first + k) * step <= axis.high + step * 1e-9; ++k) out.push_back((first + k) * step);
  return out;
}

Axis cover(const Chart& chart, double CurvePoint::*field, bool from_zero, double margin) {
  Axis axis{INFINITY, -INFINITY};
  for (const Series& series : chart.series) {
    for (const CurvePoint& point : series.points) {
      axis.low = std::min(axis.low, point.*field);
      axis.high = std::max(axis.high, point.*field);
    }
  }
  if (axis.low > axis.high) axis = {0, 1};
  if (from_zero) axis.low = std::min(0.0, axis.low);
  const double span = axis.high - axis.low;
  // A series that is constant but for rounding is drawn as a constant.
  const double extra = span > 1e-9 * std::fabs(axis.high) ? span * margin : std::max(std::fabs(axis.high) * 0.1, 1e-12);
  axis.high += extra;
  if (!from_zero) axis.low -= extra;
  return axis;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        if (static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t')
          out += fmt::format("&#x{:x};", 0x2400 + c);
        else
          out += c;
    }
  }
  return out;
}

std::string short_number(double value) {
  constexpr std::string_view kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  const double size = std::fabs(value);
  if (size == 0) return "0";  // also for a tick at minus zero
  if (size < 1000) return size < 0.001 ? fmt::format("{:.1e}", value) : fmt::format("{:.4g}", value);
  size_t prefix = 0;
  double scaled = value;
  while (std::fabs(scaled) >= 999.5 && prefix + 1 < std::size(kPrefixes)) {
    scaled /= 1000;
    ++prefix;
  }
  return fmt::format("{:.3g}{}", scaled, kPrefixes[prefix]);
}

std::string to_svg(const Chart& chart) {
  const Axis x = cover(chart, &CurvePoint::step, false, 0), y = cover(chart, &CurvePoint::value, chart.from_zero, 0.05);
  const auto px = [&](double step) { return kLeft + x.at(step) * (kWidth - kLeft - kRight); };
  const auto py = [&](double value) { return kTop + (1 - y.at(value)) * (kHeight - kTop - kBottom); };
  std::string svg =
      fmt::format("<svg class=chart viewBox=\"0 0 {:.0f} {:.0f}\" role=img aria-label=\"{}\">", kWidth, kHeight, escape_html(chart.title));
  for (const double tick : ticks(y, 5)) {
    svg += fmt::format(
        "<line class=grid x1={:.1f} x2={:.1f} y1={:.1f} y2={:.1f} /><text class=tick x={:.1f} y={:.1f} text-anchor=end>{}</text>", kLeft,
        kWidth - kRight, py(tick), py(tick), kLeft - 6, py(tick) + 4, short_number(tick));
  }
  for (const double tick : ticks(x, 6)) {
    svg += fmt::format("<text class=tick x={:.1f} y={:.1f} text-anchor=middle>{}</text>", px(tick), kHeight - 10, short_number(tick));
  }
  svg += fmt::format("<line class=axis x1={:.1f} x2={:.1f} y1={:.1f} y2={:.1f} />", kLeft, kWidth - kRight, kHeight - kBottom,
                     kHeight - kBottom);
  for (size_t k = 0; k < chart.series.size(); ++k) {
    const Series& series = chart.series[k];
    std::string path, marks, readout;
    for (const CurvePoint& point : series.points) {
      path += fmt::format("{:.1f},{:.1f} ", px(point.step), py(point.value));
      readout += fmt::format("{:.1f},{:.1f},{:.0f},{:.6g};", px(point.step), py(point.value), point.step, point.value);
      if (series.dotted || series.points.size() == 1)
        marks += fmt::format("<circle class=s{} cx={:.1f} cy={:.1f} r=3 />", k, px(point.step), py(point.value));
    }
    svg += fmt::format("<polyline class=\"line s{}\" points=\"{}\" data-name=\"{}\" data-points=\"{}\" />{}", k, path,
                       escape_html(series.name), readout, marks);
  }
  svg += "<g class=cursor></g></svg>";
  std::string legend;
  for (size_t k = 0; k < chart.series.size(); ++k)
    legend += fmt::format("<span class=\"key k{}\">{}</span>", k, escape_html(chart.series[k].name));
  return fmt::format("<figure><figcaption><b>{}</b>{}{}</figcaption>{}</figure>\n", escape_html(chart.title),
                     chart.unit.empty() ? "" : fmt::format(" <small>{}</small>", escape_html(chart.unit)), legend, svg);
}

}  // namespace glim
