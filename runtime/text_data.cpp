#include "runtime/text_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

namespace glim {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kIgnored = -100;

// splitmix64: the n-th number is a function of the seed alone, the same on every machine (std::shuffle is not).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    return z ^ z >> 31;
  }
  // Uniform below `bound` > 0, without the bias of a remainder.
  uint64_t below(uint64_t bound) {
    const uint64_t first_fair = -bound % bound;  // 2^64 mod bound
    uint64_t value = next();
    while (value < first_fair) value = next();
    return value % bound;
  }

 private:
  uint64_t state_;
};

std::vector<uint32_t> identity(size_t count) {
  std::vector<uint32_t> out(count);
  std::iota(out.begin(), out.end(), 0U);
  return out;
}

void shuffle(std::span<uint32_t> items, Random& random) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
}

Result<std::vector<std::string>> text_files(std::span<const std::string> paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    for (auto at = fs::directory_iterator(path, error); !error && at != fs::directory_iterator(); at.increment(error)) {
      std::error_code ignored;
      if (at->path().extension() == ".txt" && at->is_regular_file(ignored)) found.push_back(at->path().string());
    }
    if (error) return io_error(path, "cannot list the folder", error.value());
    if (found.empty()) return invalid_file(fmt::format("{}: this folder has no .txt file", path));
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

}  // namespace

Result<TextData> TextData::load(std::span<const std::string> paths, const TextDataOptions& options) {
  if (options.tokens < 2 || options.tokens > int64_t{1} << 30)
    return invalid_argument(fmt::format("{} tokens in a row, expected 2 to 2^30", options.tokens));
  if (options.micro_steps < 1) return invalid_argument(fmt::format("{} micro-steps in a step, expected at least 1", options.micro_steps));
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    return invalid_argument(fmt::format("the validation fraction is {}, expected 0 to under 1", options.validation_fraction));
  }
  if (paths.empty()) return invalid_argument("no text file or folder was given");
  GLIM_ASSIGN(const std::vector<std::string> files, text_files(paths));
  TextData data;
  data.options_ = options;
  data.cache_ = std::make_unique<Cache>();
  for (const std::string& path : files) {
    GLIM_ASSIGN(MappedFile file, MappedFile::open(path));
    data.files_.push_back(std::move(file));
  }
  data.split();
  const size_t num_pieces = data.training_.pieces.size() + data.validation_.pieces.size();
  if (num_pieces == 0) return invalid_file(fmt::format("{}: no text: {} empty file(s)", paths.front(), files.size()));
  if (num_pieces > UINT32_MAX) return invalid_file(fmt::format("{}: {} pieces of text, the limit is 2^32", paths.front(), num_pieces));
  if (options.validation_fraction > 0 && num_pieces < 2) {
    return invalid_file(
        fmt::format("{}: all text fits in one row of {} tokens, so none can be held out for validation", paths.front(), options.tokens));
  }
  for (Part* part : {&data.training_, &data.validation_}) {
    pack(*part, options.tokens);
    for (const auto& row : part->rows) data.max_segments_ = std::max(data.max_segments_, static_cast<int64_t>(row.size()));
  }
  return data;
}

// Cuts files into pieces and deals them to the two parts.
void TextData::split() {
  std::vector<Piece> all;
  for (size_t file = 0; file < files_.size(); ++file) {
    const auto size = static_cast<int64_t>(files_[file].bytes().size());
    for (int64_t begin = 0; begin < size; begin += options_.tokens) {
      all.push_back({static_cast<uint32_t>(file), begin, std::min(options_.tokens, size - begin)});
    }
  }
  const auto count = static_cast<int64_t>(all.size());
  int64_t held_out = std::llround(static_cast<double>(count) * options_.validation_fraction);
  if (options_.validation_fraction > 0) held_out = std::clamp<int64_t>(held_out, 1, std::max<int64_t>(1, count - 1));
  __extension__ using Wide = __int128;  // piece number times held-out pieces may exceed 64 bits
  for (int64_t i = 0; i < count; ++i) {
    const bool is_validation = Wide{i + 1} * held_out / count > Wide{i} * held_out / count;
    Part& part = is_validation ? validation_ : training_;
    part.pieces.push_back(all[static_cast<size_t>(i)]);
    part.num_bytes += all[static_cast<size_t>(i)].length;
  }
}

// Best fit, longest first: each piece goes to the fullest row that still has room.
void TextData::pack(Part& part, int64_t tokens) {
  std::stable_sort(part.pieces.begin(), part.pieces.end(), [](const Piece& a, const Piece& b) { return a.length > b.length; });
  std::set<std::pair<int64_t, size_t>> open;  // {room, row}
  for (size_t rank = 0; rank < part.pieces.size(); ++rank) {
    const int64_t length = part.pieces[rank].length;
    const auto best = open.lower_bound({length, 0});
    std::pair<int64_t, size_t> row{tokens, part.rows.size()};
    if (best == open.end()) {
      part.rows.emplace_back();
    } else {
      row = *best;
      open.erase(best);
    }
    part.rows[row.second].push_back(static_cast<uint32_t>(rank));
    row.first -= length;
    if (row.first > 0) open.insert(row);
  }
}

std::shared_ptr<const TextData::EpochOrder> TextData::order(int64_t epoch) const {
  const std::lock_guard lock(cache_->mutex);
  if (cache_->order == nullptr || cache_->order->epoch != epoch) {
    Random random(Random(options_.seed).next() ^ static_cast<uint64_t>(epoch) * 0xd1342543de82ef95ULL);
    const auto& pieces = training_.pieces;
    auto fresh = std::make_shared<EpochOrder>(EpochOrder{epoch, identity(pieces.size()), identity(training_.rows.size())});
    for (size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {  // pieces of one length change places
      while (end < pieces.size() && pieces[end].length == pieces[begin].length) ++end;
      shuffle(std::span(fresh->piece_of_rank).subspan(begin, end - begin), random);
    }
    shuffle(fresh->rows, random);
    cache_->order = std::move(fresh);
  }
  return cache_->order;
}

std::vector<TextData::Piece> TextData::training_row(int64_t step, int micro_step) const {
  int64_t index = 0;
  GLIM_CHECK(step >= 0 && micro_step >= 0 && micro_step < options_.micro_steps, "a step from 0, a micro-step of it");
  GLIM_CHECK(!__builtin_mul_overflow(step, options_.micro_steps, &index) && !__builtin_add_overflow(index, micro_step, &index),
             "step too large");
  const auto epoch_order = order(index / num_rows());
  std::vector<Piece> row;
  for (const uint32_t rank : training_.rows[epoch_order->rows[static_cast<size_t>(index % num_rows())]]) {
    row.push_back(training_.pieces[epoch_order->piece_of_rank[rank]]);
  }
  return row;
}

TextBatch TextData::make_batch(std::span<const Piece> row) const {
  const auto num_tokens = static_cast<size_t>(options_.tokens);
  TextBatch out;
  out.tokens.resize(num_tokens);
  out.positions.resize(num_tokens);
  out.targets.assign(num_tokens, kIgnored);
  out.segments.push_back(0);
  size_t at = 0;
  for (const Piece& piece : row) {
    const auto bytes = files_[piece.file].bytes().subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.length));
    for (size_t i = 0; i < bytes.size(); ++i, ++at) {
      out.tokens[at] = std::to_integer<int32_t>(bytes[i]);
      out.positions[at] = static_cast<int32_t>(i);
      if (i + 1 < bytes.size()) out.targets[at] = std::to_integer<int32_t>(bytes[i + 1]);
    }
    out.segments.push_back(static_cast<int32_t>(at));
  }
  out.num_segments = static_cast<int64_t>(row.size());
  out.num_tokens = static_cast<int64_t>(at);
  out.num_valid = out.num_tokens - out.num_segments;
  out.segments.resize(static_cast<size_t>(max_segments_) + 1, static_cast<int32_t>(at));
  return out;
}

TextBatch TextData::batch(int64_t step, int micro_step) const { return make_batch(training_row(step, micro_step)); }

int64_t TextData::step_num_valid(int64_t step) const {
  int64_t count = 0;
  for (int micro_step = 0; micro_step < options_.micro_steps; ++micro_step) {
    for (const Piece& piece : training_row(step, micro_step)) count += piece.length - 1;
  }
  return count;
}

TextBatch TextData::validation_batch(int64_t row) const {
  GLIM_CHECK(row >= 0 && row < num_validation_rows(), "a row of the validation part");
  std::vector<Piece> pieces;
  for (const uint32_t rank : validation_.rows[static_cast<size_t>(row)]) pieces.push_back(validation_.pieces[rank]);
  return make_batch(pieces);
}

}  // namespace glim
