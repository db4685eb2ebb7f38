// `glim import` and `glim export`: Hugging Face folders in and out, byte for byte.
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/safetensors.h"
#include "tests/cli/program.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

// config.json and model.safetensors of a case, as they would be downloaded.
void copy_checkpoint(const std::string& name, const std::string& to) {
  fs::create_directory(to);
  for (const char* file : {"config.json", "model.safetensors"}) fs::copy_file(golden_folder(name) + "/" + file, to + "/" + file);
}
void expect_ok(const std::vector<std::string>& arguments) {
  const ProgramResult result = run_glim(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Transfer, EveryGoldenFolderComesBackByteForByte) {
  for (const std::string& name : golden_text_cases()) {
    const ScratchFolder scratch;
    copy_checkpoint(name, scratch / "from");
    expect_ok({"import", scratch / "from", "--output", scratch / "imported"});
    expect_ok({"export", scratch / "imported", "--output", scratch / "exported"});
    EXPECT_EQ(read_folder(scratch / "imported"), read_folder(scratch / "from")) << name;
    EXPECT_EQ(read_folder(scratch / "exported"), read_folder(scratch / "from")) << name;
    EXPECT_EQ(read_folder(scratch / "from").size(), 2U);
  }
}

TEST(Transfer, ShardsAndTheirIndexComeBackByteForByte) {
  const ScratchFolder scratch;
  copy_checkpoint("text_tiny", scratch / "from");
  expect_ok({"export", scratch / "from", "--output", scratch / "shards", "--max-shard-bytes", "300000"});
  std::map<std::string, std::string> shards = read_folder(scratch / "shards");
  ASSERT_EQ(shards.size(), 4U);  // config.json, the index and two shards
  ASSERT_TRUE(shards.contains("model.safetensors.index.json") && shards.contains("model-00002-of-00002.safetensors"));
  // An index as another program would write it, and the vision tower's weights, which this model does not have.
  std::string& index = shards["model.safetensors.index.json"];
  const size_t at = index.find("\"weight_map\"");
  ASSERT_NE(at, std::string::npos);
  index.insert(at, "\n\n");
  write_file(scratch / "shards/model.safetensors.index.json", index);
  expect_ok({"import", scratch / "shards", "--output", scratch / "imported"});
  expect_ok({"export", scratch / "imported", "--output", scratch / "exported"});
  EXPECT_EQ(read_folder(scratch / "imported"), shards);
  EXPECT_EQ(read_folder(scratch / "exported"), shards);

  const std::string inputs = golden_folder("text_tiny") + "/case.safetensors";
  expect_ok({"run", scratch / "from", "--inputs", inputs, "--outputs", scratch / "one.safetensors"});
  expect_ok({"run", scratch / "exported", "--inputs", inputs, "--outputs", scratch / "two.safetensors"});
  EXPECT_EQ(read_file(scratch / "one.safetensors"), read_file(scratch / "two.safetensors"));
}

// Names prove nothing unless values arrive: every tensor is changed alone, and only it changes in the export.
TEST(Transfer, EveryTensorKeepsItsPlace) {
  const ScratchFolder scratch;
  copy_checkpoint("text_tied", scratch / "from");
  expect_ok({"export", scratch / "from", "--output", scratch / "wide", "--dtype", "f64"});
  const auto before = read_tensors(scratch / "from/model.safetensors"), after = read_tensors(scratch / "wide/model.safetensors");
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, values] : before) {
    EXPECT_EQ(after.at(name).at, values.at) << name;
    EXPECT_EQ(after.at(name).shape, values.shape) << name;
  }
}

TEST(Transfer, BF16CheckpointsRun) {
  const ScratchFolder scratch;
  copy_checkpoint("text_tiny", scratch / "from");
  expect_ok({"import", scratch / "from", "--output", scratch / "bf16", "--dtype", "bf16"});
  const Result<SafetensorsFile> file = SafetensorsFile::open(scratch / "bf16/model.safetensors");
  ASSERT_TRUE(file);
  for (const FileTensor& tensor : file->tensors()) EXPECT_EQ(tensor.spec.dtype, FileDType::kBF16) << tensor.spec.name;
  const std::string inputs = golden_folder("text_tiny") + "/case.safetensors";
  // Rounding the weights first is what a bf16 run of the f32 checkpoint does.
  expect_ok({"run", scratch / "bf16", "--inputs", inputs, "--outputs", scratch / "a.safetensors", "--dtype", "bf16", "--grad"});
  expect_ok({"run", scratch / "from", "--inputs", inputs, "--outputs", scratch / "b.safetensors", "--dtype", "bf16", "--grad"});
  EXPECT_EQ(read_file(scratch / "a.safetensors"), read_file(scratch / "b.safetensors"));
}

// A tied configuration whose checkpoint holds a head all the same: the head is used as it is.
TEST(Transfer, AHeadThatIsThereIsUsed) {
  const ScratchFolder scratch;
  copy_checkpoint("text_tied", scratch / "tied");
  const std::string inputs = golden_folder("text_tied") + "/case.safetensors";
  const Result<SafetensorsFile> file = SafetensorsFile::open(scratch / "tied/model.safetensors");
  ASSERT_TRUE(file);
  ASSERT_EQ(file->find("lm_head.weight"), nullptr);
  const FileTensor& table = *file->find("model.language_model.embed_tokens.weight");
  std::vector<float> values(table.data.size() / sizeof(float));
  std::memcpy(values.data(), table.data.data(), table.data.size());
  const auto run_with_head = [&](float factor, const std::string& name) {
    std::vector<float> head = values;
    for (float& value : head) value *= factor;
    std::vector<FileTensor> tensors(file->tensors().begin(), file->tensors().end());
    tensors.push_back({{"lm_head.weight", FileDType::kF32, table.spec.shape}, std::as_bytes(std::span(head))});
    fs::create_directory(scratch / name);
    fs::copy_file(scratch / "tied/config.json", scratch / (name + "/config.json"));
    ASSERT_TRUE(write_safetensors(scratch / (name + "/model.safetensors"), tensors, FileMetadata{{"format", "pt"}}));
    expect_ok({"run", scratch / name, "--inputs", inputs, "--outputs", scratch / (name + ".out"), "--dtype", "f64", "--grad"});
  };
  expect_ok({"run", scratch / "tied", "--inputs", inputs, "--outputs", scratch / "tied.out", "--dtype", "f64", "--grad"});
  run_with_head(1, "same");
  run_with_head(-1, "negated");
  const auto tied = read_tensors(scratch / "tied.out"), same = read_tensors(scratch / "same.out"),
             negated = read_tensors(scratch / "negated.out");
  EXPECT_EQ(same.at("logits").at, tied.at("logits").at);
  for (size_t i = 0; i < 320; ++i) EXPECT_EQ(negated.at("logits").at[i], -tied.at("logits").at[i]) << i;
  EXPECT_FALSE(tied.contains("grad.lm_head.weight"));
  ASSERT_TRUE(same.contains("grad.lm_head.weight"));
  // The gradient of the shared table is the sum of its two uses.
  const auto& whole = tied.at("grad.model.language_model.embed_tokens.weight").at;
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(whole[i], same.at("grad.model.language_model.embed_tokens.weight").at[i] + same.at("grad.lm_head.weight").at[i], 1e-12);
  }
  expect_ok({"import", scratch / "same", "--output", scratch / "copy"});
  EXPECT_EQ(read_folder(scratch / "copy"), read_folder(scratch / "same"));
}

}  // namespace
}  // namespace glim
