// Damaged and hostile checkpoints: found out, said in plain words, an older one used.
#include <sys/stat.h>

#include "runtime/hf_names.h"
#include "tests/runtime/checkpoint_fixture.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

// Two checkpoints, of which tests damage the newer one.
class CheckpointDamage : public testing::Test {
 protected:
  CheckpointDamage() {
    const auto folder = open_folder(scratch_.path());
    for (const int64_t step : {1, 2}) {
      trained_.fill(step);
      EXPECT_TRUE(save_now(*folder, trained_, step));
    }
  }
  [[nodiscard]] std::string newer(const std::string& name = "") const {
    return scratch_ / "step-00000002" + (name.empty() ? "" : "/" + name);
  }

  // The older one is found; returns why the newer one was passed over.
  [[nodiscard]] std::string reason() const {
    const Result<NewestCheckpoint> newest = find_newest_checkpoint(scratch_.path());
    if (!newest || !newest->found || newest->found->state.step != 1 || newest->passed_over.size() != 1) return "";
    EXPECT_EQ(newest->passed_over[0].step, 2);
    return newest->passed_over[0].reason;
  }
  // Makes the manifest agree with the files again: what somebody would do who means harm.
  void reseal(const std::function<void(Manifest&)>& change = [](Manifest&) {}) const {
    Manifest manifest{2, {}};
    for (const std::string& name : names_in(newer())) {
      if (name != kManifestName && fs::is_regular_file(newer(name))) manifest.files[name] = *digest_of_file(newer(name));
    }
    change(manifest);
    write_file(newer(kManifestName), manifest_text(manifest));
  }

  ScratchFolder scratch_{fast_parent()};
  TrainedModel trained_{DType::kF32, {"num_layers=1"}};
};

TEST_F(CheckpointDamage, TruncationIsFound) {
  for (const std::string& name : names_in(newer())) {
    const std::string content = read_file(newer(name));
    std::set<size_t> lengths{0, 1, 7, 8, 9, content.size() / 2, content.size() - 2, content.size() - 1};
    for (uint64_t k = 0; k < 40; ++k)
      lengths.insert(static_cast<size_t>(uniform_draw(make_stream(1, name), k) * static_cast<double>(content.size())));
    for (const size_t length : lengths) {
      fs::resize_file(newer(name), length);
      const std::string why = reason();
      EXPECT_EQ(why.find(newer(name) + ": "), 0U) << name << " cut to " << length << ": " << why;
      const bool says_why = why.find("the file is damaged") != std::string::npos || why.find("it is cut off") != std::string::npos;
      EXPECT_TRUE(says_why) << why;
      write_file(newer(name), content);
    }
    write_file(newer(name), content + "x");
    EXPECT_NE(reason().find("the file is damaged"), std::string::npos) << name;
    write_file(newer(name), content);
  }
  EXPECT_EQ(find_newest_checkpoint(scratch_.path())->found->state.step, 2);
}

TEST_F(CheckpointDamage, EveryFlippedBitIsFound) {
  const std::vector<std::string> names = names_in(newer());
  std::map<std::string, std::string> contents = read_folder(newer());
  const uint64_t stream = make_stream(2, "flips");
  for (uint64_t k = 0; k < 1000; ++k) {
    const std::string& name = names[k % names.size()];
    std::string& content = contents[name];
    const auto bit = static_cast<size_t>(uniform_draw(stream, k) * 8 * static_cast<double>(content.size()));
    content[bit / 8] = static_cast<char>(content[bit / 8] ^ (1 << bit % 8));
    write_file(newer(name), content);
    const std::string why = reason();
    EXPECT_EQ(why.find(newer(name) + ": "), 0U) << name << " bit " << bit << ": " << why;
    EXPECT_NE(why.find("the file is damaged"), std::string::npos) << why;
    content[bit / 8] = static_cast<char>(content[bit / 8] ^ (1 << bit % 8));
    write_file(newer(name), content);
  }
  EXPECT_EQ(find_newest_checkpoint(scratch_.path())->found->state.step, 2);
}

// What a large model gets: shards and an index.
TEST_F(CheckpointDamage, ShardsAreReadAndVerified) {
  {
    const Result<HfFolder> single = HfFolder::open(newer());
    ASSERT_TRUE(single);
    const HfLayout sharded = plan_hf_layout(single->layout().shards.front().tensors, 8'000);
    const Result<WrittenFiles> written = write_hf_files(newer(), sharded, single->source());
    ASSERT_TRUE(written) << written.error().to_string();
    EXPECT_GT(written->size(), 4U);
    for (const auto& [name, digest] : *written) EXPECT_EQ(digest, *digest_of_file(newer(name)));
    fs::remove(newer(kSingleName));
    reseal();
  }
  Result<NewestCheckpoint> newest = find_newest_checkpoint(scratch_.path());
  ASSERT_TRUE(newest && newest->found);
  EXPECT_EQ(newest->found->state.step, 2);
  const States before = trained_.read();
  trained_.clear();
  ASSERT_TRUE(restore(trained_.model(), *newest->found, trained_.state(0)));
  EXPECT_EQ(trained_.read(), before);
  const std::string shard = newest->found->weights.layout().shards.front().file;  // "model-00001-of-..."
  fs::rename(newer(shard), newer("model-00000" + shard.substr(11)));
  EXPECT_NE(reason().find("'model-00000" + shard.substr(11) + "' is not in manifest.json"), std::string::npos) << reason();
}

TEST_F(CheckpointDamage, AllDamagedMeansNone) {
  for (const char* step : {"step-00000001", "step-00000002"}) fs::remove(scratch_ / step + "/" + kOptimizerName);
  const Result<NewestCheckpoint> newest = find_newest_checkpoint(scratch_.path());
  ASSERT_TRUE(newest);
  EXPECT_FALSE(newest->found);
  ASSERT_EQ(newest->passed_over.size(), 2U);
  EXPECT_EQ(newest->passed_over[0].reason, newer(kOptimizerName) + ": the file is missing");
}

TEST_F(CheckpointDamage, WrongFolders) {
  const fs::path kept = scratch_ / "kept";
  fs::copy(newer(), kept);
  const auto expect = [&](std::string_view message, const std::function<void()>& harm) {
    fs::remove_all(newer());
    fs::copy(kept, newer());
    harm();
    const std::string why = reason();
    EXPECT_NE(why.find(message), std::string::npos) << "'" << why << "' does not say '" << message << "'";
  };
  const auto replace_by_link = [&](const std::string& name, const fs::path& target) {
    fs::remove(newer(name));
    fs::create_symlink(target, newer(name));
  };
  expect("/model.safetensors: this is a link", [&] { replace_by_link(kSingleName, kept / kSingleName); });
  expect("/manifest.json: this is a link", [&] { replace_by_link(kManifestName, kept / kManifestName); });
  expect("/state.json: this is a link", [&] { replace_by_link(kStateName, "/dev/zero"); });
  expect("/train.toml: this is a folder", [&] {
    fs::remove(newer(kConfigurationName));
    fs::create_directory(newer(kConfigurationName));
  });
  expect("/state.json: this is a pipe, socket or device", [&] {
    fs::remove(newer(kStateName));
    ASSERT_EQ(::mkfifo(newer(kStateName).c_str(), 0600), 0);
  });
  expect("'tokenizer.json' is not in manifest.json", [&] { write_file(newer("tokenizer.json"), "{}"); });
  expect("'.model.safetensors.tmp-1-0' is not in manifest.json", [&] { write_file(newer(".model.safetensors.tmp-1-0"), ""); });
  expect("'a\\x0ab' is not in manifest.json", [&] { write_file(newer("a\nb"), ""); });
  expect("'tokenizer.json' is not the name of a file of a checkpoint", [&] {
    write_file(newer("tokenizer.json"), "{}");
    reseal();
  });
  expect("there is no manifest.json", [&] { fs::remove(newer(kManifestName)); });
  expect("/config.json: the file is missing", [&] { fs::remove(newer(kConfigName)); });
  expect("expected a folder, and no link", [&] {
    fs::remove_all(newer());
    fs::create_directory_symlink(kept, newer());
  });
  expect("expected a folder, and no link", [&] {
    fs::remove_all(newer());
    write_file(newer(), "x");
  });
  expect("this folder holds step 1", [&] {
    fs::remove_all(newer());
    fs::copy(scratch_ / "step-00000001", newer());
  });
  expect("state.json says step 1, manifest.json says step 2", [&] {
    fs::copy_file(scratch_ / "step-00000001/state.json", newer(kStateName), fs::copy_options::overwrite_existing);
    reseal();
  });
  expect("it does not name optimizer.safetensors", [&] {
    fs::remove(newer(kOptimizerName));
    reseal();
  });
  expect("has neither model.safetensors nor", [&] {
    fs::remove(newer(kSingleName));
    reseal();
  });
  expect("has both model.safetensors and", [&] {
    write_file(newer(kIndexName), "{}");
    reseal();
  });
  expect("optimizer.safetensors: not a safetensors file", [&] {
    write_file(newer(kOptimizerName), "12345");
    reseal();
  });
  expect("it has 5 bytes, expected 9223372036854775807", [&] {
    write_file(newer(kOptimizerName), "12345");
    reseal([](Manifest& manifest) { manifest.files[kOptimizerName].bytes = INT64_MAX; });
  });
  // Well-formed and sealed, but not of this model: refused when it is restored, and nothing of the model changes.
  fs::remove_all(newer());
  fs::copy(kept, newer());
  fs::copy_file(newer(kSingleName), newer(kOptimizerName), fs::copy_options::overwrite_existing);
  reseal();
  const Result<Checkpoint> foreign = open_checkpoint(newer());
  ASSERT_TRUE(foreign) << foreign.error().to_string();
  const States before = trained_.read();
  const Result<Resumed> restored = restore(trained_.model(), *foreign, trained_.state(0));
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.error().message.find("the tensors do not fit the model"), std::string::npos) << restored.error().message;
  EXPECT_EQ(trained_.read(), before);
}

std::string sealed(const std::string& body) {
  Checksum checksum;
  checksum.add(body);
  return body + "  \"manifest_xxh3\": \"" + checksum.digest().xxh3 + "\"\n}\n";
}

TEST(HostileManifest, IsRefused) {
  const std::string sum(32, 'a');
  const auto entry = [&sum](const std::string& name) { return "\"" + name + "\": {\"bytes\": 1, \"xxh3\": \"" + sum + "\"},"; };
  const std::string files =
      entry("train.toml") + entry("optimizer.safetensors") + "\"state.json\": {\"bytes\": 1, \"xxh3\": \"" + sum + "\"}";
  const auto with_files = [](const std::string& inner) { return "{\"glim_checkpoint\": 1, \"step\": 2, \"files\": {" + inner + "},\n"; };
  ASSERT_TRUE(parse_manifest(sealed(with_files(files)), "m")) << parse_manifest(sealed(with_files(files)), "m").error().message;
  const std::string head = "{\"glim_checkpoint\": 1, \"step\": ", tail = ", \"files\": {" + files + "},\n";
  std::string deep;
  for (int k = 0; k < 100'000; ++k) deep += "[";
  const std::vector<std::pair<std::string, std::string>> cases{
      {head + "-1" + tail, "step must be a whole number"},
      {head + "1.5" + tail, "step must be a whole number"},
      {head + "1e3" + tail, "step must be a whole number"},
      {head + "\"2\"" + tail, "step must be a whole number"},
      {head + "null" + tail, "step must be a whole number"},
      {head + "9223372036854775808" + tail, "step must be a whole number below 2^63"},
      {head + "18446744073709551616" + tail, "step must be a whole number"},
      {head + deep + tail, "nested deeper than 32 levels"},
      {head + "2, \"step\": 3" + tail, "'step' appears twice"},
      {head + "2, \"more\": 3" + tail, "unknown key 'more'"},
      {"{\"step\": 2" + tail, "glim_checkpoint must be"},
      {"{\"glim_checkpoint\": 2, \"step\": 2" + tail, "has format 2, this program reads format 1"},
      {"{\"glim_checkpoint\": 1" + tail, "step must be"},
      {"{\"glim_checkpoint\": 1, \"step\": 2,\n", "files must be an object"},
      {"{\"glim_checkpoint\": 1, \"step\": 2, \"files\": [1],\n", "files must be an object"},
      {"[\n", "bad JSON"},
      {"", "bad JSON"},
      {head + std::string("2\0", 2) + tail, "NUL byte"},
      {with_files(entry("../state.json") + files), "'../state.json' is not the name of a file of a checkpoint"},
      {with_files(entry("/etc/passwd") + files), "'/etc/passwd' is not the name"},
      {with_files(entry("a/state.json") + files), "'a/state.json' is not the name"},
      {with_files(entry("model-/../../x.safetensors") + files), "is not the name"},
      {with_files(entry("model-\\u0000.safetensors") + files), "is not the name"},
      {with_files(entry("model-" + std::string(300, 'x') + ".safetensors") + files), "is not the name"},
      {with_files(entry("") + files), "'' is not the name"},
      {with_files(entry("..") + files), "'..' is not the name"},
      {with_files(entry("manifest.json") + files), "'manifest.json' is not the name"},
      {with_files(entry("train.toml") + files), "'train.toml' appears twice"},
      {with_files(""), "it does not name state.json"},
      {with_files("\"state.json\": 1"), "expected an object with bytes and xxh3"},
      {with_files("\"state.json\": {\"bytes\": 1, \"xxh3\": \"a\", \"x\": 1}"), "expected an object with bytes and xxh3"},
      {with_files("\"state.json\": {\"bytes\": 1, \"sum\": \"a\"}"), "xxh3 must be a string"},
      {with_files("\"state.json\": {\"bytes\": 1, \"xxh3\": 5}"), "xxh3 must be a string"},
      {with_files("\"state.json\": {\"bytes\": 1, \"xxh3\": \"abc\"}"), "32 lower-case hexadecimal digits"},
      {with_files("\"state.json\": {\"bytes\": 1, \"xxh3\": \"" + std::string(32, 'A') + "\"}"), "32 lower-case hexadecimal digits"},
      {with_files("\"state.json\": {\"bytes\": -1, \"xxh3\": \"" + sum + "\"}"), "bytes must be a whole number"},
      {with_files("\"state.json\": {\"bytes\": 99999999999999999999, \"xxh3\": \"" + sum + "\"}"), "bytes must be a whole number"},
  };
  for (const auto& [body, message] : cases) {
    const Result<Manifest> manifest = parse_manifest(sealed(body), "m");
    ASSERT_FALSE(manifest) << body.substr(0, 200);
    EXPECT_EQ(manifest.error().code, ErrorCode::kInvalidFile);
    EXPECT_NE(manifest.error().message.find(message), std::string::npos) << manifest.error().message << "\ndoes not say: " << message;
  }
  EXPECT_FALSE(parse_manifest(sealed(with_files(files)) + "\n", "m"));
  EXPECT_FALSE(parse_manifest(std::string(17 << 20, ' '), "m"));
}

TEST(HostileState, IsRefused) {
  const TrainingState state{.step = 5, .skipped_in_a_row = 1, .identity = {{"a", "1"}}, .choices = {{"b", "2"}}};
  const std::string good = *state_json(state);
  ASSERT_TRUE(parse_state_json(good, "s"));
  EXPECT_EQ(good.find("algorithms"), std::string::npos) << "there are none";
  const auto with = [&good](std::string_view from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "bad JSON"},
      {"[]", "expected an object"},
      {"{}", "step is missing"},
      {good.substr(0, good.size() / 2), "bad JSON"},
      {good + "x", "bad JSON"},
      {with("\"step\": 5", "\"step\": -5"), "step must be a whole number"},
      {with("\"step\": 5", "\"step\": 5.5"), "step must be a whole number"},
      {with("\"step\": 5", "\"step\": \"5\""), "step must be a whole number"},
      {with("\"step\": 5", "\"step\": 9223372036854775808"), "step must be a whole number below 2^63"},
      {with("\"step\": 5", "\"step\": 1e999"), "bad JSON"},
      {with("\"step\": 5", "\"step\": 5, \"step\": 6"), "'step' appears twice"},
      {with("\"step\": 5", "\"stepp\": 5"), "unknown key 'stepp'; did you mean 'step'?"},
      {with("\"skipped_in_a_row\": 1", "\"skipped_in_a_row\": null"), "skipped_in_a_row must be a whole number"},
      {with("\"a\": \"1\"", "\"a\": 1"), "identity: 'a' must be a string"},
      {with("\"a\": \"1\"", "\"a\": \"1\", \"a\": \"2\""), "'a' appears twice"},
      {with("\"a\": \"1\"", "\"a\": \"\xff\""), "bad JSON"},
      {with("\"b\": \"2\"", "\"b\": {\"c\": \"2\"}"), "choices: 'b' must be a string"},
      {with("\"b\": \"2\"", "\"b\": " + std::string(100'000, '[')), "nested deeper"},
      {with("\"choices\"", "\"choice\""), "unknown key 'choice'"},
      {with("\"choices\"", "\"algorithms\": [], \"choices\""), "algorithms must be an object of strings"},
      {with("\"choices\"", "\"algorithms\": {\"p\": 1}, \"choices\""), "algorithms: 'p' must be a string"},
      {with("\"choices\"", "\"algorithm\": {}, \"choices\""), "unknown key 'algorithm'"},
      {std::string("{}\0", 3), "NUL byte"},
  };
  for (const auto& [text, message] : cases) {
    const Result<TrainingState> parsed = parse_state_json(text, "s");
    ASSERT_FALSE(parsed) << text.substr(0, 200);
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidFile);
    EXPECT_NE(parsed.error().message.find(message), std::string::npos) << parsed.error().message << "\ndoes not say: " << message;
  }
}

}  // namespace
}  // namespace glim
