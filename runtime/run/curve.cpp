#include "runtime/run/curve.h"

#include <cmath>

namespace glim {

void Curve::add(double step, double value) {
  if (!std::isfinite(value)) return;
  open_sum_.step += step;
  open_sum_.value += value;
  if (++num_open_ < per_point_) return;
  const auto count = static_cast<double>(num_open_);
  points_.push_back({open_sum_.step / count, open_sum_.value / count});
  open_sum_ = {};
  num_open_ = 0;
  if (points_.size() < kMaxPoints) return;
  for (size_t k = 0; k < kMaxPoints / 2; ++k) {
    const CurvePoint &a = points_[2 * k], &b = points_[2 * k + 1];
    points_[k] = {(a.step + b.step) / 2, (a.value + b.value) / 2};
  }
  points_.resize(kMaxPoints / 2);
  per_point_ *= 2;
}

std::vector<CurvePoint> Curve::points() const {
  std::vector<CurvePoint> out = points_;
  if (num_open_ > 0) out.push_back({open_sum_.step / static_cast<double>(num_open_), open_sum_.value / static_cast<double>(num_open_)});
  return out;
}

}  // namespace glim
