#include "runtime/data/training_data.h"

#include <map>
#include <random>
#include <set>
#include <thread>

#include "scratch_folder.h"

namespace glim {
namespace {

std::string random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string out;
  for (size_t i = 0; i < count; ++i) out += static_cast<char>(random());
  return out;
}

const Vocabulary kBytes{256, true};
TrainingData load(const std::string& path, const DataOptions& options, double validation_fraction = 0) {
  DataConfig config;
  config.text = {path};
  config.validation_fraction = validation_fraction;
  auto data = TrainingData::load(config, options, kBytes);
  EXPECT_TRUE(data) << data.error().to_string();
  return *std::move(data);
}

// The pieces of a row as text; checks everything else of the row against them.
std::vector<std::string> checked_pieces(const TokenBatch& batch, const TrainingData& data) {
  const auto num_tokens = static_cast<size_t>(data.options().tokens);
  EXPECT_EQ(batch.tokens.size(), num_tokens);
  EXPECT_EQ(batch.positions.size(), num_tokens);
  EXPECT_EQ(batch.targets.size(), num_tokens);
  EXPECT_EQ(batch.segments.size(), static_cast<size_t>(data.max_segments()) + 1);
  EXPECT_EQ(batch.segments.front(), 0);
  EXPECT_EQ(batch.segments.back(), batch.num_tokens);
  std::vector<std::string> pieces;
  int64_t num_valid = 0;
  for (size_t g = 0; g + 1 < batch.segments.size(); ++g) {
    const int32_t begin = batch.segments[g], end = batch.segments[g + 1];
    if (static_cast<int64_t>(g) >= batch.num_segments) {
      EXPECT_EQ(begin, end);
      continue;
    }
    EXPECT_LT(begin, end);
    pieces.emplace_back();
    for (int32_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      pieces.back() += static_cast<char>(batch.tokens[at]);
      EXPECT_EQ(batch.positions[at], i - begin);
      EXPECT_EQ(batch.targets[at], i + 1 < end ? batch.tokens[at + 1] : -100);
      num_valid += i + 1 < end ? 1 : 0;
    }
  }
  EXPECT_EQ(batch.num_valid, num_valid);
  for (auto i = static_cast<size_t>(batch.num_tokens); i < num_tokens; ++i) {
    EXPECT_EQ(batch.tokens[i], 0);
    EXPECT_EQ(batch.positions[i], 0);
    EXPECT_EQ(batch.targets[i], -100);
  }
  return pieces;
}

std::multiset<std::string> cut(const std::vector<std::string>& documents, size_t length) {
  std::multiset<std::string> out;
  for (const auto& document : documents) {
    for (size_t begin = 0; begin < document.size(); begin += length) out.insert(document.substr(begin, length));
  }
  return out;
}

TEST(TrainingData, one_large_file_is_used_to_its_last_byte_every_epoch) {
  const ScratchFolder folder;
  const std::string text = random_bytes(64 * 100 + 17, 1);
  write_file(folder / "big.txt", text);
  const TrainingData data = load(folder / "big.txt", {.tokens = 64, .seed = 3});
  EXPECT_EQ(data.num_rows(), 101);
  EXPECT_EQ(data.num_tokens(), static_cast<int64_t>(text.size()));
  EXPECT_EQ(data.max_segments(), 1);
  std::vector<std::vector<std::string>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::multiset<std::string> seen;
    orders.emplace_back();
    for (int64_t row = 0; row < data.num_rows(); ++row) {
      for (const auto& piece : checked_pieces(data.batch(epoch * data.num_rows() + row), data)) {
        seen.insert(piece);
        orders.back().push_back(piece);
      }
    }
    EXPECT_EQ(seen, cut({text}, 64));
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  std::vector<std::string> in_file_order;
  for (size_t begin = 0; begin < text.size(); begin += 64) in_file_order.push_back(text.substr(begin, 64));
  EXPECT_NE(orders[0], in_file_order);
}

// Documents of random lengths, many of them equal, some empty, one byte, exactly T, or longer.
std::vector<std::string> write_documents(const ScratchFolder& folder, uint64_t seed, int count, int64_t longest) {
  std::mt19937_64 random(seed);
  std::vector<std::string> documents;
  for (int i = 0; i < count; ++i) {
    const size_t length = i == 0 ? 0 : i == 1 ? 1 : i == 2 ? static_cast<size_t>(longest / 3) : random() % static_cast<uint64_t>(longest);
    documents.push_back(random_bytes(length, random()));
    write_file(folder / ("doc" + std::to_string(1000 + i) + ".txt"), documents.back());
  }
  return documents;
}

TEST(TrainingData, packing_properties) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const ScratchFolder folder;
    const auto documents = write_documents(folder, seed, 60, 150);
    write_file(folder / "notes.md", "not text for training");
    const TrainingData data = load(folder.path(), {.tokens = 50, .seed = seed});
    int64_t total = 0, most = 0;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::multiset<std::string> seen;
      for (int64_t row = 0; row < data.num_rows(); ++row) {
        const auto batch = data.batch(epoch * data.num_rows() + row);
        const auto pieces = checked_pieces(batch, data);
        seen.insert(pieces.begin(), pieces.end());
        total += batch.num_tokens;
        most = std::max(most, batch.num_segments);
      }
      EXPECT_EQ(seen, cut(documents, 50));  // whole pieces, each once: none is split or lost
    }
    EXPECT_EQ(most, data.max_segments());
    EXPECT_EQ(total, 3 * data.num_tokens());
    // Best fit, longest first, stays within 11/9 of the best packing plus one row.
    EXPECT_LE(data.num_rows(), (data.num_tokens() * 11 / 9 + 49) / 50 + 1 + 60 / 4);
    EXPECT_GT(static_cast<double>(data.num_tokens()) / static_cast<double>(data.num_rows() * 50), 0.85);
  }
}

TEST(TrainingData, a_step_is_a_function_of_seed_and_step) {
  const ScratchFolder folder;
  write_documents(folder, 5, 80, 120);
  const DataOptions options{.tokens = 40, .seed = 11, .micro_steps = 3};
  const TrainingData one = load(folder.path(), options), two = load(folder.path(), options);
  DataOptions other_seed = options;
  other_seed.seed = 12;
  const TrainingData other = load(folder.path(), other_seed);
  int different = 0;
  std::map<int64_t, std::vector<int32_t>> forward;
  for (int64_t step = 0; step < 100; ++step) forward[step] = one.batch(step, 1).tokens;
  for (int64_t step = 99; step >= 0; --step) {  // any order of access
    EXPECT_EQ(two.batch(step, 1).tokens, forward[step]) << step;
    different += other.batch(step, 1).tokens != forward[step] ? 1 : 0;
  }
  EXPECT_GT(different, 80);
  EXPECT_EQ(one.batch(int64_t{1} << 50, 2).tokens, two.batch(int64_t{1} << 50, 2).tokens);
}

TEST(TrainingData, micro_steps_walk_through_the_same_rows) {
  const ScratchFolder folder;
  write_documents(folder, 6, 50, 100);
  const TrainingData single = load(folder.path(), {.tokens = 40, .seed = 2}),
                     grouped = load(folder.path(), {.tokens = 40, .seed = 2, .micro_steps = 4});
  for (int64_t step = 0; step < 2 * grouped.num_rows(); ++step) {
    int64_t num_valid = 0;
    for (int micro_step = 0; micro_step < 4; ++micro_step) {
      const auto batch = grouped.batch(step, micro_step);
      EXPECT_EQ(batch.tokens, single.batch(step * 4 + micro_step).tokens);
      EXPECT_EQ(batch.segments, single.batch(step * 4 + micro_step).segments);
      num_valid += batch.num_valid;
    }
    EXPECT_EQ(grouped.step_num_valid(step), num_valid);
  }
}

TEST(TrainingData, validation_part_is_disjoint_and_does_not_depend_on_the_seed) {
  const ScratchFolder folder;
  const std::string text = random_bytes(32 * 200, 8);
  write_file(folder / "t.txt", text);
  std::multiset<std::string> first;
  for (const uint64_t seed : {1, 2}) {
    const TrainingData data = load(folder / "t.txt", {.tokens = 32, .seed = seed}, 0.1);
    EXPECT_EQ(data.num_validation_rows(), 20);
    EXPECT_EQ(data.num_rows(), 180);
    EXPECT_EQ(data.num_tokens() + data.num_validation_tokens(), static_cast<int64_t>(text.size()));
    std::multiset<std::string> held_out, all;
    for (int64_t row = 0; row < data.num_validation_rows(); ++row) {
      for (const auto& piece : checked_pieces(data.validation_batch(row), data)) held_out.insert(piece);
    }
    all = held_out;
    for (int64_t row = 0; row < data.num_rows(); ++row) {
      for (const auto& piece : checked_pieces(data.batch(row), data)) all.insert(piece);
    }
    EXPECT_EQ(all, cut({text}, 32));
    if (seed == 1) first = held_out;
    EXPECT_EQ(held_out, first);
    // Spread over the file: some in each quarter.
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      int count = 0;
      for (size_t begin = quarter * 1600; begin < (quarter + 1) * 1600; begin += 32)
        count += held_out.contains(text.substr(begin, 32)) ? 1 : 0;
      EXPECT_EQ(count, 5) << quarter;
    }
  }
  const TrainingData tiny = load(folder / "t.txt", {.tokens = 32 * 100}, 0.0001);
  EXPECT_EQ(tiny.num_validation_rows(), 1);
  EXPECT_EQ(tiny.num_rows(), 1);
  EXPECT_EQ(load(folder / "t.txt", {.tokens = 32 * 100}, 0.9999).num_rows(), 1);
}

TEST(TrainingData, bytes_are_tokens) {
  const ScratchFolder folder;
  write_file(folder / "x", std::string("\x00\xff\x7f\x80", 4));
  const auto batch = load(folder / "x", {.tokens = 6}).batch(0);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{0, 255, 127, 128, 0, 0}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{255, 127, 128, -100, -100, -100}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 3, 0, 0}));
  EXPECT_EQ(batch.segments, (std::vector<int32_t>{0, 4}));
}

TEST(TrainingData, threads_share_it) {
  const ScratchFolder folder;
  write_documents(folder, 9, 40, 90);
  const TrainingData data = load(folder.path(), {.tokens = 30, .seed = 4}), alone = load(folder.path(), {.tokens = 30, .seed = 4});
  std::vector<std::vector<std::vector<int32_t>>> seen(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int64_t step = 0; step < 200; ++step) seen[i].push_back(data.batch(step * static_cast<int64_t>(i + 1)).tokens);
    });
  }
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < 4; ++i) {
    for (size_t step = 0; step < 200; ++step) EXPECT_EQ(seen[i][step], alone.batch(static_cast<int64_t>(step * (i + 1))).tokens);
  }
}

TEST(TrainingData, errors) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "empty");
  write_file(folder / "nothing.txt", "");
  write_file(folder / "short.txt", "abc");
  const auto message = [](std::vector<std::string> paths, const DataOptions& options, double validation_fraction = 0) {
    DataConfig config;
    config.text = std::move(paths);
    config.validation_fraction = validation_fraction;
    const auto data = TrainingData::load(config, options, kBytes);
    EXPECT_FALSE(data);
    return data ? "" : data.error().to_string();
  };
  EXPECT_NE(message({}, {}).find("no data file or folder"), std::string::npos);
  EXPECT_NE(message({folder / "missing"}, {}).find("No such file"), std::string::npos);
  EXPECT_NE(message({folder / "empty"}, {}).find("has no .txt file"), std::string::npos);
  EXPECT_NE(message({folder / "nothing.txt"}, {}).find("no data"), std::string::npos);
  EXPECT_NE(message({folder / "short.txt"}, {}, 0.5).find("held out"), std::string::npos);
  EXPECT_NE(message({folder / "short.txt"}, {.tokens = 1}).find("expected 2 to 2^30"), std::string::npos);
  EXPECT_NE(message({folder / "short.txt"}, {.tokens = int64_t{1} << 31}).find("expected 2 to 2^30"), std::string::npos);
  EXPECT_NE(message({folder / "short.txt"}, {.micro_steps = 0}).find("at least 1"), std::string::npos);
  for (const double fraction : {-0.1, 1.0, std::nan("")}) {
    EXPECT_NE(message({folder / "short.txt"}, {}, fraction).find("validation fraction"), std::string::npos);
  }
}

}  // namespace
}  // namespace glim
