// Every format as training data: what rows hold, packed files read back, folders, the held-out part, and what identifies the data.
#include <algorithm>
#include <random>
#include <set>

#include "runtime/data/packed_file.h"
#include "runtime/data/training_data.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

using Ids = std::vector<int32_t>;
using PieceOfRow = std::pair<Ids, Ids>;  // tokens, targets

struct Document {
  Ids ids;
  std::vector<bool> is_label;
};

// Documents of all lengths around T, with no label, all labels, or some.
std::vector<Document> random_documents(int count, int32_t vocabulary_size, size_t longest, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Document> documents(static_cast<size_t>(count));
  for (Document& document : documents) {
    const size_t length = random() % longest;
    const uint64_t kind = random() % 4;
    for (size_t i = 0; i < length; ++i) {
      document.ids.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary_size)));
      document.is_label.push_back(kind == 0 || (kind != 1 && random() % 3 != 0));
    }
  }
  return documents;
}

std::string as_json_lines(const std::vector<Document>& documents) {
  std::string out;
  for (const Document& document : documents) {
    std::string ids, labels;
    for (size_t i = 0; i < document.ids.size(); ++i) {
      ids += (i > 0 ? "," : "") + std::to_string(document.ids[i]);
      labels += (i > 0 ? "," : "") + std::to_string(document.is_label[i] ? document.ids[i] : -100);
    }
    out += "{\"input_ids\":[" + ids + "],\"labels\":[" + labels + "]}\n";
  }
  return out;
}

std::multiset<PieceOfRow> cut(const std::vector<Document>& documents, size_t tokens, bool drop) {
  std::multiset<PieceOfRow> pieces;
  for (const Document& document : documents) {
    const size_t length = document.ids.size();
    if (drop && length > tokens) continue;
    for (size_t begin = 0; begin < length; begin += tokens) {
      const size_t end = std::min(length, begin + tokens);
      PieceOfRow piece{{document.ids.begin() + static_cast<int64_t>(begin), document.ids.begin() + static_cast<int64_t>(end)}, {}};
      for (size_t i = begin; i < end; ++i) piece.second.push_back(i + 1 < end && document.is_label[i + 1] ? document.ids[i + 1] : -100);
      pieces.insert(std::move(piece));
    }
  }
  return pieces;
}

std::vector<PieceOfRow> pieces_of(const TokenBatch& batch, int64_t tokens) {
  EXPECT_EQ(static_cast<int64_t>(batch.tokens.size()), tokens);
  EXPECT_LE(batch.num_tokens, tokens);
  EXPECT_EQ(batch.segments.back(), batch.num_tokens);
  std::vector<PieceOfRow> pieces;
  int64_t num_valid = 0;
  for (int64_t g = 0; g < batch.num_segments; ++g) {
    const int32_t begin = batch.segments[static_cast<size_t>(g)], end = batch.segments[static_cast<size_t>(g) + 1];
    EXPECT_LT(begin, end);
    pieces.push_back(
        {{batch.tokens.begin() + begin, batch.tokens.begin() + end}, {batch.targets.begin() + begin, batch.targets.begin() + end}});
    for (int32_t i = begin; i < end; ++i) EXPECT_EQ(batch.positions[static_cast<size_t>(i)], i - begin);
  }
  for (const int32_t target : batch.targets) num_valid += target != -100 ? 1 : 0;
  EXPECT_EQ(batch.num_valid, num_valid);
  for (auto i = static_cast<size_t>(batch.num_tokens); i < batch.tokens.size(); ++i)
    EXPECT_TRUE(batch.tokens[i] == 0 && batch.positions[i] == 0 && batch.targets[i] == -100);
  return pieces;
}

DataConfig config_of(std::vector<std::string> files, double validation_fraction = 0) {
  DataConfig config;
  config.files = std::move(files);
  config.validation_fraction = validation_fraction;
  return config;
}
TrainingData load(const DataConfig& config, const DataOptions& options, const Vocabulary& vocabulary) {
  Result<TrainingData> data = TrainingData::load(config, options, vocabulary);
  if (!data) throw std::runtime_error(data.error().to_string());
  return std::move(*data);
}

const Vocabulary kVocabularies[] = {{200, false}, {60'000, false}, {70'000, false}};  // 1, 2 and 4 bytes per token

TEST(DataFiles, EveryKeptTokenIsInOneRowOfEachEpoch) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const ScratchFolder folder;
    const Vocabulary& vocabulary = kVocabularies[seed % 3];
    const std::vector<Document> documents = random_documents(70, static_cast<int32_t>(vocabulary.size), 60, seed);
    write_file(folder / "a.jsonl", as_json_lines(documents));
    for (const bool drop : {false, true}) {
      DataConfig config = config_of({folder / "a.jsonl"});
      config.overlong = drop ? Overlong::kDrop : Overlong::kSplit;
      const TrainingData data = load(config, {.tokens = 40, .seed = seed}, vocabulary);
      const std::multiset<PieceOfRow> expected = cut(documents, 40, drop);
      int64_t num_tokens = 0, num_valid = 0;
      std::vector<std::vector<PieceOfRow>> epochs[2];
      for (int64_t epoch = 0; epoch < 2; ++epoch) {
        std::multiset<PieceOfRow> seen;
        num_tokens = num_valid = 0;
        for (int64_t row = 0; row < data.num_rows(); ++row) {
          const TokenBatch batch = data.batch(epoch * data.num_rows() + row);
          EXPECT_EQ(data.step_num_valid(epoch * data.num_rows() + row), batch.num_valid);
          epochs[epoch].push_back(pieces_of(batch, 40));
          seen.insert(epochs[epoch].back().begin(), epochs[epoch].back().end());
          num_tokens += batch.num_tokens;
          num_valid += batch.num_valid;
        }
        ASSERT_EQ(seen, expected) << "seed " << seed;
      }
      EXPECT_NE(epochs[0], epochs[1]);
      const DataStatistics& s = data.statistics();
      EXPECT_EQ(s.training.num_tokens, num_tokens);
      EXPECT_EQ(s.training.num_valid, num_valid);
      EXPECT_EQ(s.training.num_pieces, static_cast<int64_t>(expected.size()));
      EXPECT_DOUBLE_EQ(s.training.padding, 1 - static_cast<double>(num_tokens) / static_cast<double>(40 * data.num_rows()));
      EXPECT_EQ(s.num_documents, 70);
      int64_t empty = 0, overlong = 0, overlong_tokens = 0, unlabelled = 0;
      for (const Document& document : documents) {
        const std::multiset<PieceOfRow> pieces = cut({document}, 40, drop);
        empty += document.ids.empty() ? 1 : 0;
        if (document.ids.size() > 40) ++overlong, overlong_tokens += static_cast<int64_t>(document.ids.size());
        const bool learnt = std::any_of(pieces.begin(), pieces.end(), [](const PieceOfRow& piece) {
          return std::any_of(piece.second.begin(), piece.second.end(), [](int32_t target) { return target != -100; });
        });
        unlabelled += !pieces.empty() && !learnt ? 1 : 0;
      }
      EXPECT_EQ(s.num_empty, empty);
      EXPECT_EQ(s.num_split, drop ? 0 : overlong);
      EXPECT_EQ(s.num_dropped, drop ? overlong : 0);
      EXPECT_EQ(s.num_dropped_tokens, drop ? overlong_tokens : 0);
      EXPECT_EQ(s.num_unlabelled, unlabelled);
      EXPECT_GT(s.num_unlabelled, 0);
    }
  }
}

void expect_equal(const TokenBatch& a, const TokenBatch& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.targets, b.targets);
  EXPECT_EQ(a.segments, b.segments);
  EXPECT_EQ(a.num_valid, b.num_valid);
}

void pack(const std::vector<std::string>& files, const Vocabulary& vocabulary, const std::string& output) {
  Result<std::vector<DataFile>> found = list_data_files(files, {});
  ASSERT_TRUE(found) << found.error().to_string();
  const Result<Documents> documents = load_documents(*found, vocabulary, {});
  ASSERT_TRUE(documents) << documents.error().to_string();
  const Status written = write_packed(*documents, vocabulary, output);
  ASSERT_TRUE(written) << written.error().to_string();
}

TEST(DataFiles, APackedFileReadsBackAsWhatItWasMadeFrom) {
  for (const Vocabulary& vocabulary : kVocabularies) {
    const ScratchFolder folder;
    const auto size = static_cast<int32_t>(vocabulary.size);
    write_file(folder / "a.jsonl", as_json_lines(random_documents(50, size, 70, 1)));
    write_file(folder / "b.jsonl", "{\"input_ids\":[]}\n{\"input_ids\":[5]}\n{\"input_ids\":[1,2,3]}\n");
    write_file(folder / "c.jsonl", as_json_lines(random_documents(31, size, 20, 2)));
    const std::vector<std::string> files{folder / "a.jsonl", folder / "b.jsonl", folder / "c.jsonl"};
    pack(files, vocabulary, folder / "all.tokens");
    pack({folder / "all.tokens", folder / "b.jsonl"}, vocabulary, folder / "again.tokens");  // packed files are data, too
    const DataOptions options{.tokens = 32, .seed = 3, .micro_steps = 2};
    const TrainingData direct = load(config_of(files, 0.1), options, vocabulary),
                       packed = load(config_of({folder / "all.tokens"}, 0.1), options, vocabulary),
                       more = load(config_of({folder / "again.tokens"}, 0.1), options, vocabulary);
    EXPECT_EQ(packed.fingerprint(), direct.fingerprint());
    EXPECT_NE(more.fingerprint(), direct.fingerprint());
    EXPECT_EQ(more.statistics().num_documents, direct.statistics().num_documents + 3);
    ASSERT_EQ(packed.num_rows(), direct.num_rows());
    ASSERT_EQ(packed.num_validation_rows(), direct.num_validation_rows());
    for (int64_t step = 0; step < direct.num_rows() + 2; ++step) {
      for (int micro_step = 0; micro_step < 2; ++micro_step) expect_equal(packed.batch(step, micro_step), direct.batch(step, micro_step));
      EXPECT_EQ(packed.step_num_valid(step), direct.step_num_valid(step));
    }
    for (int64_t row = 0; row < direct.num_validation_rows(); ++row)
      expect_equal(packed.validation_batch(row), direct.validation_batch(row));
  }
}

TEST(DataFiles, TextInAnyFormatIsTheSameData) {
  const Vocabulary bytes{256, true};
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "texts");
  std::string lines;
  for (int k = 0; k < 12; ++k) {
    const std::string text(static_cast<size_t>(k * k), static_cast<char>('a' + k));
    write_file(folder / ("texts/" + std::to_string(100 + k) + ".txt"), text);
    lines += "{\"text\":\"" + text + "\"}\n";
  }
  write_file(folder / "a.jsonl", lines);
  pack({folder / "texts"}, bytes, folder / "a.tokens");
  DataConfig as_text = config_of({});
  as_text.text = {folder / "texts"};
  const DataOptions options{.tokens = 50, .seed = 1};
  const TrainingData text = load(as_text, options, bytes), json = load(config_of({folder / "a.jsonl"}), options, bytes),
                     packed = load(config_of({folder / "a.tokens"}), options, bytes);
  for (int64_t step = 0; step < 2 * text.num_rows(); ++step) {
    expect_equal(json.batch(step), text.batch(step));
    expect_equal(packed.batch(step), text.batch(step));
  }
  EXPECT_EQ(json.fingerprint(), text.fingerprint());
  EXPECT_EQ(packed.fingerprint(), text.fingerprint());
}

// Anything that changes a token, a label, a boundary or the order changes the fingerprint; options do not.
TEST(DataFiles, TheFingerprintIsOfTheContents) {
  const ScratchFolder folder;
  const Vocabulary vocabulary{300, false};
  const auto fingerprint = [&](const std::string& lines, const DataOptions& options = {.tokens = 4}, const std::string& validation = "") {
    write_file(folder / "a.jsonl", lines);
    DataConfig config = config_of({folder / "a.jsonl"});
    if (!validation.empty()) {
      write_file(folder / "v.jsonl", validation);
      config.validation = {folder / "v.jsonl"};
    }
    return load(config, options, vocabulary).fingerprint();
  };
  const std::string a = "{\"input_ids\":[1,2,3]}\n", b = "{\"input_ids\":[4,5]}\n";
  const std::string first = fingerprint(a + b);
  EXPECT_EQ(first.size(), 32U);
  EXPECT_EQ(fingerprint("\n" + a + "\r\n" + b, {.tokens = 7, .seed = 9, .micro_steps = 3}), first);
  EXPECT_EQ(fingerprint("{\"labels\":[1,2,3],\"input_ids\":[1,2,3]}\n" + b), first);
  const std::vector<std::string> others{a,
                                        b + a,
                                        a + a + b,
                                        a + b + "{\"input_ids\":[]}\n",
                                        "{\"input_ids\":[1,2]}\n{\"input_ids\":[3,4,5]}\n",
                                        "{\"input_ids\":[1,2,3,4,5]}\n",
                                        "{\"input_ids\":[1,2,259]}\n" + b,
                                        "{\"input_ids\":[1,2,3],\"labels\":[1,-100,3]}\n" + b,
                                        "{\"input_ids\":[1,2,3],\"labels\":[1,2,-100]}\n" + b};
  std::set<std::string> seen{first};
  for (const std::string& other : others) seen.insert(fingerprint(other));
  EXPECT_EQ(seen.size(), others.size() + 1);
  EXPECT_FALSE(seen.contains(fingerprint(a, {.tokens = 4}, b)));
  EXPECT_NE(fingerprint(a, {.tokens = 4}, b), fingerprint(b, {.tokens = 4}, a));
}

TEST(DataFiles, FoldersAreOrderedByNameAndPassOverWhatIsNoData) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "d/sub.txt");
  write_file(folder / "d/b.txt", "bb");
  write_file(folder / "d/a.jsonl", "{\"text\":\"aa\"}");
  write_file(folder / "d/c.txt", "cc");
  write_file(folder / "d/.hidden.txt", "no");
  write_file(folder / "d/notes.md", "no");
  write_file(folder / "d/sub.txt/e.txt", "no");
  write_file(folder / "z.md", "zz");
  const auto names = [&](const std::vector<std::string>& files, const std::vector<std::string>& text) {
    std::string out;
    const Result<std::vector<DataFile>> found = list_data_files(files, text);
    EXPECT_TRUE(found) << found.error().to_string();
    for (const DataFile& file : *found)
      out += file.path.substr(folder.path().size() + 1) + std::to_string(static_cast<int>(file.format)) + " ";
    return out;
  };
  EXPECT_EQ(names({folder / "d"}, {}), "d/a.jsonl1 d/b.txt0 d/c.txt0 ");
  EXPECT_EQ(names({folder / "d/c.txt"}, {folder / "z.md", folder / "d"}), "d/c.txt0 z.md0 d/b.txt0 d/c.txt0 ");
}

TEST(DataFiles, ValidationFilesAreHeldOutWhole) {
  const ScratchFolder folder;
  write_file(folder / "train.jsonl", "{\"text\":\"abc\"}\n{\"text\":\"defg\"}\n");
  write_file(folder / "held.jsonl", "{\"prompt\":\"x\",\"completion\":\"yz\"}\n{\"text\":\"12345678\"}\n");
  DataConfig config = config_of({folder / "train.jsonl"}, 0.5);
  config.validation = {folder / "held.jsonl"};
  const TrainingData data = load(config, {.tokens = 4}, {256, true});
  EXPECT_EQ(data.num_tokens(), 7);
  EXPECT_EQ(data.num_validation_tokens(), 11);
  EXPECT_EQ(data.statistics().num_documents, 4);
  EXPECT_EQ(data.statistics().num_split, 1);
  std::multiset<Ids> held_out;
  for (int64_t row = 0; row < data.num_validation_rows(); ++row) {
    for (const PieceOfRow& piece : pieces_of(data.validation_batch(row), 4)) held_out.insert(piece.first);
  }
  EXPECT_EQ(held_out, (std::multiset<Ids>{{'x', 'y', 'z'}, {'1', '2', '3', '4'}, {'5', '6', '7', '8'}}));
}

// By fraction: a document that fits is on one side only.
TEST(DataFiles, DocumentsThatFitAreHeldOutWhole) {
  const ScratchFolder folder;
  const std::vector<Document> documents = random_documents(200, 70'000, 30, 4);
  write_file(folder / "a.jsonl", as_json_lines(documents));
  const TrainingData data = load(config_of({folder / "a.jsonl"}, 0.25), {.tokens = 30}, kVocabularies[2]);
  std::multiset<PieceOfRow> all;
  int64_t held_out = 0;
  for (int64_t row = 0; row < data.num_rows(); ++row) {
    for (PieceOfRow& piece : pieces_of(data.batch(row), 30)) all.insert(std::move(piece));
  }
  for (int64_t row = 0; row < data.num_validation_rows(); ++row) {
    for (PieceOfRow& piece : pieces_of(data.validation_batch(row), 30)) ++held_out, all.insert(std::move(piece));
  }
  EXPECT_EQ(all, cut(documents, 30, false));
  EXPECT_NEAR(static_cast<double>(held_out) / static_cast<double>(all.size()), 0.25, 0.01);
}

TEST(DataFiles, AVocabularyComesFromTheModel) {
  Result<ModelSpec> spec = load_spec(GLIM_SOURCE_DIR "/models/muse_glimmer_tiny.toml");
  ASSERT_TRUE(spec);
  const Result<Vocabulary> bytes = vocabulary_of(*spec);
  ASSERT_TRUE(bytes) << bytes.error().to_string();
  EXPECT_EQ(bytes->size, 256);
  EXPECT_TRUE(bytes->is_bytes);
  spec = load_spec(GLIM_SOURCE_DIR "/models/muse_glimmer_30b.toml");
  ASSERT_TRUE(spec);
  const Result<Vocabulary> large = vocabulary_of(*spec);
  ASSERT_TRUE(large) << large.error().to_string();
  EXPECT_GT(large->size, 100'000);
  EXPECT_FALSE(large->is_bytes);
  spec->inputs.clear();
  EXPECT_FALSE(vocabulary_of(*spec));
}

}  // namespace
}  // namespace glim
