#include "runtime/data/training_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace glim {
namespace {

Status check_options(const DataConfig& config, const DataOptions& options) {
  if (options.tokens < 2 || options.tokens > int64_t{1} << 30)
    return invalid_argument(fmt::format("{} tokens in a row, expected 2 to 2^30", options.tokens));
  if (options.micro_steps < 1) return invalid_argument(fmt::format("{} micro-steps in a step, expected at least 1", options.micro_steps));
  if (!(config.validation_fraction >= 0 && config.validation_fraction < 1)) {
    return invalid_argument(fmt::format("the validation fraction is {}, expected 0 to under 1", config.validation_fraction));
  }
  return ok();
}

// Moves every k-th piece, so that a share of `fraction` is held out.
Result<std::vector<Piece>> hold_out(std::vector<Piece>& pieces, double fraction, const std::string& path) {
  std::vector<Piece> held_out, kept;
  if (fraction == 0) return held_out;
  const auto count = static_cast<int64_t>(pieces.size());
  if (count < 2) return invalid_file(fmt::format("{}: there is one piece of data, so none can be held out for validation", path));
  const int64_t wanted = std::clamp<int64_t>(std::llround(static_cast<double>(count) * fraction), 1, count - 1);
  __extension__ using Wide = __int128;  // piece number times held-out pieces may exceed 64 bits
  for (int64_t i = 0; i < count; ++i) {
    const bool is_held_out = Wide{i + 1} * wanted / count > Wide{i} * wanted / count;
    (is_held_out ? held_out : kept).push_back(pieces[static_cast<size_t>(i)]);
  }
  pieces = std::move(kept);
  return held_out;
}

}  // namespace

Result<TrainingData> TrainingData::load(const DataConfig& config, const DataOptions& options, const Vocabulary& vocabulary) {
  GLIM_TRY(check_options(config, options));
  TrainingData data;
  data.options_ = options;
  data.cache_ = std::make_unique<Cache>();
  GLIM_ASSIGN(const std::vector<DataFile> files, list_data_files(config.files, config.text));
  if (files.empty()) return invalid_argument("no data file or folder was given");
  GLIM_ASSIGN(Documents documents, load_documents(files, vocabulary, config.ignored_keys));
  data.fingerprint_ = to_hex(documents.digest);
  std::vector<Piece> pieces, held_out;
  GLIM_TRY(data.cut(documents, config.overlong, 0, pieces));
  if (pieces.empty()) {
    const DataStatistics& s = data.statistics_;
    return invalid_file(fmt::format("{}: no data: of {} document(s), {} are empty and {} longer than {} tokens, which 'overlong' drops",
                                    files.front().path, s.num_documents, s.num_empty, s.num_dropped, options.tokens));
  }
  data.blocks_ = std::move(documents.blocks);
  if (config.validation.empty()) {
    GLIM_ASSIGN(held_out, hold_out(pieces, config.validation_fraction, files.front().path));
  } else {
    GLIM_ASSIGN(const std::vector<DataFile> validation_files, list_data_files(config.validation, {}));
    GLIM_ASSIGN(Documents validation, load_documents(validation_files, vocabulary, config.ignored_keys));
    GLIM_TRY(data.cut(validation, config.overlong, static_cast<uint32_t>(data.blocks_.size()), held_out));
    if (held_out.empty()) return invalid_file(fmt::format("{}: no data to validate on", validation_files.front().path));
    std::move(validation.blocks.begin(), validation.blocks.end(), std::back_inserter(data.blocks_));
    Checksum both;
    both.add(documents.digest);
    both.add(validation.digest);
    data.fingerprint_ = to_hex(both.value());
  }
  data.training_ = Packing(std::move(pieces), options.tokens);
  data.validation_ = Packing(std::move(held_out), options.tokens);
  data.statistics_.training = data.describe(data.training_);
  data.statistics_.validation = data.describe(data.validation_);
  for (const Packing* packing : {&data.training_, &data.validation_}) {
    for (int64_t row = 0; row < packing->num_rows(); ++row)
      data.max_segments_ = std::max(data.max_segments_, static_cast<int64_t>(packing->row(row).size()));
  }
  return data;
}

// Cuts documents into pieces, in their order, and counts what becomes of them.
Status TrainingData::cut(const Documents& documents, Overlong overlong, uint32_t first_block, std::vector<Piece>& pieces) {
  for (size_t b = 0; b < documents.blocks.size(); ++b) {
    const TokenBlock& block = documents.blocks[b];
    statistics_.num_documents += block.num_documents();
    for (int64_t document = 0; document < block.num_documents(); ++document) {
      const int64_t first = block.begin(document), end = block.begin(document + 1);
      const bool is_overlong = end - first > options_.tokens;
      if (first == end) {
        ++statistics_.num_empty;
        continue;
      }
      if (is_overlong && overlong == Overlong::kDrop) {
        ++statistics_.num_dropped;
        statistics_.num_dropped_tokens += end - first;
        continue;
      }
      if (is_overlong) ++statistics_.num_split;
      int64_t num_valid = 0;
      for (int64_t begin = first; begin < end; begin += options_.tokens) {
        const int64_t length = std::min(options_.tokens, end - begin), valid = block.num_labels(begin + 1, begin + length);
        pieces.push_back({first_block + static_cast<uint32_t>(b), static_cast<int32_t>(length), static_cast<int32_t>(valid), begin});
        num_valid += valid;
      }
      if (num_valid == 0) ++statistics_.num_unlabelled;
    }
    if (pieces.size() > UINT32_MAX)
      return invalid_file(fmt::format("{}: {} pieces of data, the limit is 2^32", block.path(), pieces.size()));
  }
  return ok();
}

DataStatistics::Part TrainingData::describe(const Packing& packing) const {
  DataStatistics::Part part{.num_pieces = static_cast<int64_t>(packing.pieces().size()), .num_rows = packing.num_rows()};
  for (const Piece& piece : packing.pieces()) {
    part.num_tokens += piece.length;
    part.num_valid += piece.num_valid;
  }
  const double places = static_cast<double>(part.num_rows) * static_cast<double>(options_.tokens);
  if (places > 0) part.padding = 1 - static_cast<double>(part.num_tokens) / places;
  return part;
}

std::shared_ptr<const EpochOrder> TrainingData::order(int64_t epoch) const {
  const std::lock_guard lock(cache_->mutex);
  if (cache_->order == nullptr || cache_->order->epoch != epoch)
    cache_->order = std::make_shared<EpochOrder>(training_, options_.seed, epoch);
  return cache_->order;
}

std::vector<Piece> TrainingData::training_row(int64_t step, int micro_step) const {
  int64_t index = 0;
  GLIM_CHECK(step >= 0 && micro_step >= 0 && micro_step < options_.micro_steps, "a step from 0, a micro-step of it");
  GLIM_CHECK(!__builtin_mul_overflow(step, options_.micro_steps, &index) && !__builtin_add_overflow(index, micro_step, &index),
             "step too large");
  const auto epoch_order = order(index / num_rows());
  std::vector<Piece> row;
  for (const uint32_t rank : training_.row(epoch_order->rows[static_cast<size_t>(index % num_rows())]))
    row.push_back(training_.pieces()[epoch_order->piece_of_rank[rank]]);
  return row;
}

TokenBatch TrainingData::make_batch(std::span<const Piece> row) const {
  const auto num_tokens = static_cast<size_t>(options_.tokens);
  TokenBatch out;
  out.tokens.resize(num_tokens);
  out.positions.resize(num_tokens);
  out.targets.assign(num_tokens, kNoTarget);
  out.segments.push_back(0);
  size_t at = 0;
  for (const Piece& piece : row) {
    const TokenBlock& block = blocks_[piece.block];
    block.copy_tokens(piece.begin, std::span(out.tokens).subspan(at, static_cast<size_t>(piece.length)));
    for (int32_t i = 0; i < piece.length; ++i, ++at) {
      out.positions[at] = i;
      if (i + 1 < piece.length && block.is_label(piece.begin + i + 1)) out.targets[at] = out.tokens[at + 1];
    }
    out.segments.push_back(static_cast<int32_t>(at));
    out.num_valid += piece.num_valid;
  }
  out.num_segments = static_cast<int64_t>(row.size());
  out.num_tokens = static_cast<int64_t>(at);
  out.segments.resize(static_cast<size_t>(max_segments_) + 1, static_cast<int32_t>(at));
  return out;
}

TokenBatch TrainingData::batch(int64_t step, int micro_step) const { return make_batch(training_row(step, micro_step)); }

int64_t TrainingData::step_num_valid(int64_t step) const {
  int64_t count = 0;
  for (int micro_step = 0; micro_step < options_.micro_steps; ++micro_step) {
    for (const Piece& piece : training_row(step, micro_step)) count += piece.num_valid;
  }
  return count;
}

TokenBatch TrainingData::validation_batch(int64_t row) const {
  GLIM_CHECK(row >= 0 && row < num_validation_rows(), "a row of the validation part");
  std::vector<Piece> pieces;
  for (const uint32_t rank : validation_.row(row)) pieces.push_back(validation_.pieces()[rank]);
  return make_batch(pieces);
}

}  // namespace glim
