#pragma once
// A quantity over the steps of a run, in bounded memory however long the run is.
#include <cstdint>
#include <string>
#include <vector>

namespace glim {

struct CurvePoint {
  double step = 0, value = 0;
};

// Keeps at most kMaxPoints: when there are more, neighbours become their mean, and from then on each point stands for twice as many steps.
class Curve {
 public:
  static constexpr size_t kMaxPoints = 2048;
  void add(double step, double value);  // values that are not finite are left out
  // The points so far, and last what has not filled a point yet.
  [[nodiscard]] std::vector<CurvePoint> points() const;

 private:
  std::vector<CurvePoint> points_;
  int64_t per_point_ = 1, num_open_ = 0;
  CurvePoint open_sum_;
};

}  // namespace glim
