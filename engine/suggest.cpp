#include "engine/suggest.h"

#include <algorithm>

namespace glim {
namespace {

constexpr size_t kLongestName = 128;      // a longer name is noise, and the distance costs length squared
constexpr size_t kMostCells = 8'000'000;  // of all distances of one question: there may be a million candidates, all from a file

// Levenshtein distance in which a swap of neighbours costs one (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

template <class Strings>
std::string closest(std::string_view name, const Strings& candidates) {
  if (name.size() > kLongestName) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 2) + 1, num_cells = 0;
  for (const auto& candidate : candidates) {
    const size_t longer = std::max(name.size(), candidate.size()), shorter = std::min(name.size(), candidate.size());
    if (candidate.size() > kLongestName || longer - shorter >= best_distance) continue;  // no distance is below that of the lengths
    num_cells += longer * shorter;
    if (num_cells > kMostCells) break;
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance && distance < longer) {
      best = std::string(candidate);
      best_distance = distance;
    }
  }
  return best;
}

std::string as_question(const std::string& name) { return name.empty() ? "" : "; did you mean '" + name + "'?"; }

}  // namespace

std::string closest_name(std::string_view name, std::span<const std::string> candidates) { return closest(name, candidates); }
std::string closest_name(std::string_view name, std::span<const std::string_view> candidates) { return closest(name, candidates); }
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) { return as_question(closest(name, candidates)); }
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  return as_question(closest(name, candidates));
}

}  // namespace glim
