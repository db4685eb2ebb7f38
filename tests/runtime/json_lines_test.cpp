// JSON Lines by hand: which tokens a document has, which of them are targets, and where in a row they stand.
#include "runtime/data/json_lines.h"

#include <numeric>

#include "runtime/data/training_data.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

using Ids = std::vector<int32_t>;

const Vocabulary kBytes{256, true}, kIdsOnly{1000, false};

// The row of T tokens that one line becomes.
TokenBatch row_of(const std::string& lines, int64_t tokens, const Vocabulary& vocabulary = kBytes,
                  const std::vector<std::string>& ignored_keys = {}) {
  const ScratchFolder folder;
  write_file(folder / "a.jsonl", lines);
  DataConfig config;
  config.files = {folder / "a.jsonl"};
  config.validation_fraction = 0;
  config.ignored_keys = ignored_keys;
  Result<TrainingData> data = TrainingData::load(config, {.tokens = tokens}, vocabulary);
  EXPECT_TRUE(data) << data.error().to_string();
  if (!data) return {};
  EXPECT_EQ(data->num_rows(), 1);
  EXPECT_EQ(data->step_num_valid(0), data->batch(0).num_valid);
  return data->batch(0);
}

TEST(JsonLines, EveryTokenOfATextIsPredictedButTheFirst) {
  const TokenBatch row = row_of(R"({"text": "h\u00e9\n"})", 6);
  EXPECT_EQ(row.tokens, (Ids{'h', 0xc3, 0xa9, '\n', 0, 0}));
  EXPECT_EQ(row.targets, (Ids{0xc3, 0xa9, '\n', -100, -100, -100}));
  EXPECT_EQ(row.positions, (Ids{0, 1, 2, 3, 0, 0}));
  EXPECT_EQ(row.num_valid, 3);
}

// The last token of the prompt predicts the first of the completion, and counts; what predicts the prompt does not.
TEST(JsonLines, OnlyTheCompletionCounts) {
  const TokenBatch row = row_of(R"({"completion": "XYZ", "prompt": "abc"})", 8);
  EXPECT_EQ(row.tokens, (Ids{'a', 'b', 'c', 'X', 'Y', 'Z', 0, 0}));
  EXPECT_EQ(row.targets, (Ids{-100, -100, 'X', 'Y', 'Z', -100, -100, -100}));
  EXPECT_EQ(row.num_valid, 3);
  EXPECT_EQ(row_of(R"({"prompt": "", "completion": "XYZ"})", 3).targets, (Ids{'Y', 'Z', -100}));  // nothing predicts X
  EXPECT_EQ(row_of(R"({"prompt": "abc", "completion": ""})", 3).targets, (Ids{-100, -100, -100}));
}

TEST(JsonLines, LabelsAreNotShifted) {
  const TokenBatch row = row_of(R"({"input_ids": [1, 5, 7, 3, 2, 9], "labels": [-100, 5, 7, -100, 2, 9]})", 7, kIdsOnly);
  EXPECT_EQ(row.tokens, (Ids{1, 5, 7, 3, 2, 9, 0}));
  EXPECT_EQ(row.targets, (Ids{5, 7, -100, 2, 9, -100, -100}));
  EXPECT_EQ(row.num_valid, 4);  // a count before the shift would be the same here, so:
  const TokenBatch first = row_of(R"({"input_ids": [1, 5], "labels": [1, -100]})", 2, kIdsOnly);
  EXPECT_EQ(first.targets, (Ids{-100, -100}));  // the label of the first token has nothing that predicts it
  EXPECT_EQ(first.num_valid, 0);
  EXPECT_EQ(row_of(R"({"input_ids": [4, 999]})", 2, kIdsOnly).targets, (Ids{999, -100}));
}

// The end of one document never predicts the beginning of the next.
TEST(JsonLines, DocumentsInARowDoNotPredictEachOther) {
  const TokenBatch row = row_of("{\"prompt\": \"ab\", \"completion\": \"cd\"}\n\n{\"text\": \"xyz\"}\n{\"text\": \"q\"}", 9);
  EXPECT_EQ(row.tokens, (Ids{'a', 'b', 'c', 'd', 'x', 'y', 'z', 'q', 0}));
  EXPECT_EQ(row.targets, (Ids{-100, 'c', 'd', -100, 'y', 'z', -100, -100, -100}));
  EXPECT_EQ(row.positions, (Ids{0, 1, 2, 3, 0, 1, 2, 0, 0}));
  EXPECT_EQ(row.segments, (Ids{0, 4, 7, 8}));
}

// A piece of an over-long document starts anew: its first token is no target, and its labels stay its own.
TEST(JsonLines, PiecesKeepTheirLabels) {
  const ScratchFolder folder;
  write_file(folder / "a.jsonl", R"({"prompt": "abcde", "completion": "fghij"})");
  DataConfig config;
  config.files = {folder / "a.jsonl"};
  config.validation_fraction = 0;
  Result<TrainingData> data = TrainingData::load(config, {.tokens = 4}, kBytes);
  ASSERT_TRUE(data) << data.error().to_string();
  ASSERT_EQ(data->num_rows(), 3);
  std::map<Ids, Ids> targets;
  for (int64_t step = 0; step < 3; ++step) targets[data->batch(step).tokens] = data->batch(step).targets;
  EXPECT_EQ(targets, (std::map<Ids, Ids>{{{'a', 'b', 'c', 'd'}, {-100, -100, -100, -100}},
                                         {{'e', 'f', 'g', 'h'}, {'f', 'g', 'h', -100}},
                                         {{'i', 'j', 0, 0}, {'j', -100, -100, -100}}}));
  EXPECT_EQ(data->statistics().num_split, 1);
  EXPECT_EQ(data->statistics().num_unlabelled, 0);
  EXPECT_EQ(data->statistics().training.num_valid, 4);
  config.overlong = Overlong::kDrop;
  const Result<TrainingData> nothing = TrainingData::load(config, {.tokens = 4}, kBytes);
  ASSERT_FALSE(nothing);
  EXPECT_NE(nothing.error().message.find("no data: of 1 document(s), 0 are empty and 1 longer than 4 tokens"), std::string::npos)
      << nothing.error().message;
}

TEST(JsonLines, IgnoredKeysMayHoldAnything) {
  const std::string lines = R"({"id": [1, {"text": 5, "text": 6}], "text": "ab", "labels": "none", "meta": null})";
  EXPECT_EQ(row_of(lines, 2, kBytes, {"id", "labels", "meta"}).targets, (Ids{'b', -100}));
  EXPECT_FALSE(read_json_lines(lines, "f", kBytes, std::vector<std::string>{"id", "meta"}));
}

TEST(JsonLines, LineEndsAndWhiteSpace) {
  const Result<TokenBlock> block = read_json_lines(" \t{ \"text\" :\"a\" }\r\n\r\n   \n{\"text\":\"\"}\n{\"text\":\"bcd\"}", "f", kBytes);
  ASSERT_TRUE(block) << block.error().to_string();
  ASSERT_EQ(block->num_documents(), 3);
  EXPECT_EQ(block->begin(0), 0);
  EXPECT_EQ(block->begin(1), 1);
  EXPECT_EQ(block->begin(2), 1);
  EXPECT_EQ(block->num_tokens(), 4);
  EXPECT_FALSE(block->has_labels());
  EXPECT_EQ(read_json_lines("", "f", kBytes)->num_documents(), 0);
}

// A bit per token, whatever the documents before it said.
TEST(JsonLines, LabelBitsOfManyDocuments) {
  for (const int64_t vocabulary_size : {200, 60'000, 70'000}) {
    TokenBlock block("f", vocabulary_size);
    std::vector<bool> expected;
    Ids all;
    for (int document = 0; document < 60; ++document) {
      Ids ids(static_cast<size_t>(document * 7 % 23));
      std::vector<uint8_t> labels;
      for (int32_t& id : ids) {
        id = static_cast<int32_t>((all.size() * 7919 + 13) % static_cast<size_t>(vocabulary_size));
        all.push_back(id);
        if (document % 3 == 2) labels.push_back(id % 3 == 0 ? 1 : 0);
        expected.push_back(labels.empty() || labels.back() != 0);
      }
      block.add_document(ids, labels);
    }
    ASSERT_EQ(block.num_tokens(), static_cast<int64_t>(all.size()));
    Ids read(all.size());
    block.copy_tokens(0, read);
    EXPECT_EQ(read, all);
    for (int64_t begin = 0; begin < 40; ++begin) {
      EXPECT_EQ(block.is_label(begin), expected[static_cast<size_t>(begin)]);
      for (int64_t end = begin; end < block.num_tokens(); end += 13)
        EXPECT_EQ(block.num_labels(begin, end), std::accumulate(expected.begin() + begin, expected.begin() + end, 0))
            << begin << " " << end;
    }
  }
}

}  // namespace
}  // namespace glim
