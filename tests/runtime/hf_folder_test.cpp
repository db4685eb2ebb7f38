#include "runtime/hf_folder.h"

#include "scratch_folder.h"
#include "tests/resource_bounds.h"

namespace glim {
namespace {

namespace fs = std::filesystem;

constexpr char kShard1[] = "model-00001-of-00002.safetensors", kShard2[] = "model-00002-of-00002.safetensors";
const std::string kHeader1 =
    R"({"__metadata__":{"format":"pt"},"b.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a.weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]}})";
const std::string kHeader2 = R"({"__metadata__":{"format":"pt"},"c.weight":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}})";
const std::string kWeightMap = R"({
    "a.weight": "model-00001-of-00002.safetensors",
    "b.weight": "model-00001-of-00002.safetensors",
    "c.weight": "model-00002-of-00002.safetensors"
  })";
// As transformers writes it, total_parameters included.
const std::string kIndex = R"({
  "metadata": {
    "total_parameters": 9,
    "total_size": 22
  },
  "weight_map": )" + kWeightMap +
                           "\n}\n";

std::string padded(std::string header) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

// A folder of two shards, written without the tested code.
void write_sharded(const std::string& path, const std::string& index = kIndex) {
  fs::create_directories(path);
  write_file(path + "/config.json", "{\n  \"model_type\" : \"x\"}\n\n");
  write_file(path + "/" + kShard1, safetensors_text(padded(kHeader1), "12345678abcdefgh"));
  write_file(path + "/" + kShard2, safetensors_text(padded(kHeader2), "uvwxyz"));
  write_file(path + "/model.safetensors.index.json", index);
}

std::string open_error(const std::string& path) {
  const auto folder = bounded([&] { return HfFolder::open(path); });
  EXPECT_FALSE(folder);
  return folder ? "" : folder.error().to_string();
}

TEST(HfFolder, finds_tensors_over_all_shards) {
  const ScratchFolder scratch;
  write_sharded(scratch / "m");
  const auto folder = HfFolder::open(scratch / "m");
  ASSERT_TRUE(folder) << folder.error().to_string();
  ASSERT_EQ(folder->tensors().size(), 3U);
  EXPECT_EQ(folder->tensors()[0]->spec.name, "a.weight");
  EXPECT_EQ(folder->tensors()[2]->spec.name, "c.weight");
  ASSERT_NE(folder->find("c.weight"), nullptr);
  EXPECT_EQ(std::memcmp(folder->find("c.weight")->data.data(), "uvwxyz", 6), 0);
  EXPECT_EQ(folder->find("d.weight"), nullptr);
  EXPECT_EQ(folder->find("zzz"), nullptr);
  EXPECT_EQ(folder->layout().shards.size(), 2U);
  ASSERT_NE(folder->config_json(), nullptr);
  EXPECT_EQ(*folder->config_json(), read_file(scratch / "m/config.json"));
}

TEST(HfFolder, sharded_folder_comes_back_byte_for_byte) {
  const ScratchFolder scratch;
  write_sharded(scratch / "m");
  auto folder = HfFolder::open(scratch / "m");
  ASSERT_TRUE(folder);
  const auto status = write_hf_folder(scratch / "out", folder->layout(), folder->source());
  ASSERT_TRUE(status) << status.error().to_string();
  EXPECT_EQ(read_folder(scratch / "out"), read_folder(scratch / "m"));
  // The same from the layout alone: an index made anew is formatted as the reference does.
  HfLayout layout = folder->layout();
  layout.index_text = R"({"weight_map":{},"metadata":{"total_size":1,"total_parameters":9}})";
  ASSERT_TRUE(write_hf_folder(scratch / "anew", layout, folder->source()));
  EXPECT_EQ(read_folder(scratch / "anew"), read_folder(scratch / "m"));
  layout.index_text = "";
  ASSERT_TRUE(write_hf_folder(scratch / "new", layout, folder->source()));
  EXPECT_EQ(read_folder(scratch / "new"), read_folder(scratch / "m"));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 4);  // nothing temporary is left
}

TEST(HfFolder, an_index_in_another_format_is_kept_as_it_is) {
  const ScratchFolder scratch;
  write_sharded(
      scratch / "m",
      R"({"weight_map":{"c.weight":"model-00002-of-00002.safetensors","b.weight":"model-00001-of-00002.safetensors","a.weight":"model-00001-of-00002.safetensors"}})");
  const auto folder = HfFolder::open(scratch / "m");
  ASSERT_TRUE(folder) << folder.error().to_string();
  ASSERT_TRUE(write_hf_folder(scratch / "out", folder->layout(), folder->source()));
  EXPECT_EQ(read_folder(scratch / "out"), read_folder(scratch / "m"));
}

TEST(HfFolder, other_dtypes_change_the_total_size) {
  const ScratchFolder scratch;
  write_sharded(scratch / "m");
  const auto folder = HfFolder::open(scratch / "m");
  ASSERT_TRUE(folder);
  HfLayout layout = folder->layout();
  layout.shards[1].tensors[0].dtype = FileDType::kF64;
  const std::string wide(24, 'w');
  ASSERT_TRUE(write_hf_folder(scratch / "out", layout, [&](const TensorSpec& spec) -> Result<std::span<const std::byte>> {
    if (spec.name == "c.weight") return std::as_bytes(std::span(wide));
    return folder->find(spec.name)->data;
  }));
  EXPECT_NE(read_file(scratch / "out/model.safetensors.index.json").find("\"total_size\": 40\n"), std::string::npos);
  const auto again = HfFolder::open(scratch / "out");
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(describe(again->find("c.weight")->spec), "F64[3]");
}

TEST(HfFolder, golden_folders_come_back_byte_for_byte) {
  const ScratchFolder scratch;
  int count = 0;
  for (const auto& golden : fs::directory_iterator(GLIM_SOURCE_DIR "/tests/golden")) {
    const std::string name = golden.path().filename().string();
    if (!name.starts_with("text_")) continue;
    const auto folder = HfFolder::open(golden.path().string());
    ASSERT_TRUE(folder) << folder.error().to_string();
    ASSERT_TRUE(write_hf_folder(scratch / name, folder->layout(), folder->source()));
    EXPECT_TRUE(read_file(scratch / (name + "/model.safetensors")) == read_file((golden.path() / "model.safetensors").string()));
    EXPECT_EQ(read_file(scratch / (name + "/config.json")), read_file((golden.path() / "config.json").string()));
    EXPECT_EQ(std::distance(fs::directory_iterator(scratch / name), {}), 2);
    // A layout planned from the tensors alone is the same file.
    std::vector<TensorSpec> specs;
    for (const auto* tensor : folder->tensors()) specs.push_back(tensor->spec);
    HfLayout planned = plan_hf_layout(specs);
    planned.files = folder->layout().files;
    ASSERT_TRUE(write_hf_folder(scratch / (name + "-planned"), planned, folder->source()));
    EXPECT_TRUE(read_folder(scratch / (name + "-planned")) == read_folder(scratch / name));
    ++count;
  }
  EXPECT_EQ(count, 7);
}

TEST(HfFolder, one_file_is_a_checkpoint_too) {
  const ScratchFolder scratch;
  write_file(scratch / "any.safetensors", safetensors_text(kHeader2, "uvwxyz"));
  const auto folder = HfFolder::open(scratch / "any.safetensors");
  ASSERT_TRUE(folder);
  EXPECT_EQ(folder->config_json(), nullptr);
  EXPECT_NE(folder->find("c.weight"), nullptr);
  ASSERT_TRUE(write_hf_folder(scratch / "out", folder->layout(), folder->source()));
  ASSERT_EQ(read_folder(scratch / "out").size(), 1U);
  EXPECT_TRUE(HfFolder::open(scratch / "out"));
}

TEST(HfFolder, what_is_no_checkpoint) {
  const ScratchFolder scratch;
  fs::create_directory(scratch / "empty");
  EXPECT_NE(open_error(scratch / "empty").find("has neither model.safetensors nor model.safetensors.index.json"), std::string::npos);
  EXPECT_NE(open_error(scratch / "missing").find("missing: cannot open: No such file"), std::string::npos);
  write_file(scratch / "x.bin", "x");
  EXPECT_NE(open_error(scratch / "x.bin").find("expected a checkpoint folder or a .safetensors file"), std::string::npos);
  write_sharded(scratch / "both");
  write_file(scratch / "both/model.safetensors", safetensors_text("{}", ""));
  EXPECT_NE(open_error(scratch / "both").find("remove the stale one"), std::string::npos);
}

std::string index_with(std::string_view file_of_c, std::string_view metadata = R"({"total_size":22})") {
  return R"({"metadata":)" + std::string(metadata) +
         R"(,"weight_map":{"a.weight":"model-00001-of-00002.safetensors","b.weight":"model-00001-of-00002.safetensors","c.weight":)" +
         std::string(file_of_c) + "}}";
}

TEST(HfFolder, malformed_indexes) {
  const ScratchFolder scratch;
  const std::string good_file = R"("model-00002-of-00002.safetensors")";
  std::string long_name = "\"" + std::string(300, 'a') + ".safetensors\"";
  const std::vector<std::pair<std::string, std::string>> table{
      {"", "bad JSON"},
      {"{", "bad JSON"},
      {"[]", "expected an object"},
      {"null", "expected an object"},
      {"{} {}", "bad JSON"},
      {"{}", "weight_map is missing or empty"},
      {R"({"weight_map":{}})", "weight_map is missing or empty"},
      {R"({"weight_map":[]})", "weight_map must be an object"},
      {R"({"weight_map":null})", "weight_map must be an object"},
      {R"({"weight_map":"x"})", "weight_map must be an object"},
      {R"({"metadata":[],"weight_map":{"a":"b.safetensors"}})", "metadata must be an object"},
      {R"({"metadata":{}})", "weight_map is missing"},
      {R"({"weight_map":{"a":"b.safetensors"},"extra":{}})", "unknown key 'extra'"},
      {R"({"weight_map":{"a":"b.safetensors"},"weight_map":{"a":"c.safetensors"}})", "the key weight_map appears twice"},
      {R"({"weight_map":{"a":"b.safetensors","a":"b.safetensors"}})", "appears twice"},
      {R"({"weight_map":{"a":"b.safetensors","\u0061":"c.safetensors"}})", "appears twice"},
      {R"({"weight_map":{"a":1}})", "must be a string"},
      {R"({"weight_map":{"a":null}})", "must be a string"},
      {R"({"weight_map":{"a":["b.safetensors"]}})", "must be a string"},
      {R"({"weight_map":)" + std::string(200'000, '['), "nested deeper than"},
      {std::string("{\"weight_map\":{}}\0x", 19), "NUL byte"},
      {"{\"weight_map\":{\"a\xff\":\"b.safetensors\"}}", "bad JSON"},
      {index_with(R"("")"), "is '', expected the plain name"},
      {index_with(R"(".")"), "expected the plain name"},
      {index_with(R"("..")"), "expected the plain name"},
      {index_with(R"("../m/model-00002-of-00002.safetensors")"), "expected the plain name"},
      {index_with(R"("./model-00002-of-00002.safetensors")"), "expected the plain name"},
      {index_with(R"("sub/x.safetensors")"), "expected the plain name"},
      {index_with(R"("sub\\x.safetensors")"), "expected the plain name"},
      {index_with(R"("/etc/x.safetensors")"), "expected the plain name"},
      {index_with(R"("model-00002-of-00002.safetensors\u0000.safetensors")"), "expected the plain name"},
      {index_with(R"("a\n.safetensors")"), "expected the plain name"},
      {index_with(long_name), "expected the plain name"},
      {index_with(R"("config.json")"), "expected the plain name"},
      {index_with(R"("missing.safetensors")"), "missing.safetensors: cannot open: No such file"},
      {index_with(R"("outside.safetensors")"), "leads out of its folder"},
      {index_with(R"("folder.safetensors")"), "this is a folder"},
      {index_with(R"("garbage.safetensors")"), "not a safetensors file"},
      {index_with(R"("model-00001-of-00002.safetensors")"), "'c.weight' is not in model-00001-of-00002.safetensors"},
      {R"({"weight_map":{"a.weight":"model-00001-of-00002.safetensors"}})", "holds the tensor 'b.weight', which weight_map does not name"},
      {R"({"weight_map":{"a.weight":"model-00001-of-00002.safetensors","b.weight":"model-00002-of-00002.safetensors","c.weight":"model-00002-of-00002.safetensors"}})",
       "which weight_map puts in model-00002-of-00002.safetensors"},
      {index_with(good_file, R"({"total_size":23})"), "metadata.total_size is 23, but the tensors take 22 bytes"},
      {index_with(good_file, R"({"total_size":-22})"), "metadata.total_size is -22, expected a whole number"},
      {index_with(good_file, R"({"total_size":22.0})"), "expected a whole number"},
      {index_with(good_file, R"({"total_size":"22"})"), "expected a whole number"},
      {index_with(good_file, R"({"total_size":null})"), "expected a whole number"},
      {index_with(good_file, R"({"total_size":18446744073709551638})"), "expected a whole number"},  // 22 + 2^64
      {index_with(good_file, R"({"total_size":22,"total_size":22})"), "appears twice"},
  };
  ASSERT_GE(table.size(), 25U);
  write_file(scratch / "secret.safetensors", safetensors_text(kHeader2, "uvwxyz"));
  write_sharded(scratch / "m");
  fs::create_symlink("../secret.safetensors", scratch / "m/outside.safetensors");
  fs::create_directory(scratch / "m/folder.safetensors");
  write_file(scratch / "m/garbage.safetensors", "garbage, garbage");
  for (const auto& [index, message] : table) {
    write_file(scratch / "m/model.safetensors.index.json", index);
    std::string error = open_error(scratch / "m");
    std::erase(error, '\'');
    std::string expected = message;
    std::erase(expected, '\'');
    EXPECT_NE(error.find(expected), std::string::npos) << error << "\nfor " << index.substr(0, 300);
    EXPECT_LT(error.size(), 1200U);
  }
  write_file(scratch / "m/model.safetensors.index.json", index_with(good_file));
  EXPECT_TRUE(HfFolder::open(scratch / "m"));
}

TEST(HfFolder, links_stay_inside) {
  const ScratchFolder scratch;
  write_sharded(scratch / "m");
  // A link to a file of the same folder is fine.
  fs::rename(scratch / (std::string("m/") + kShard2), scratch / "m/real");
  fs::create_symlink("real", scratch / (std::string("m/") + kShard2));
  EXPECT_TRUE(HfFolder::open(scratch / "m"));
  // So is the layout of a Hugging Face cache.
  write_sharded(scratch / "hub/snapshots/abc");
  fs::create_directory(scratch / "hub/blobs");
  for (const std::string& name :
       {std::string(kShard1), std::string(kShard2), std::string("config.json"), std::string("model.safetensors.index.json")}) {
    fs::rename(scratch / ("hub/snapshots/abc/" + name), scratch / ("hub/blobs/" + name + "-hash"));
    fs::create_symlink("../../blobs/" + name + "-hash", scratch / ("hub/snapshots/abc/" + name));
  }
  const auto cached = HfFolder::open(scratch / "hub/snapshots/abc");
  EXPECT_TRUE(cached) << cached.error().to_string();
  // A config.json that leads elsewhere would be copied into the export.
  write_file(scratch / "private", "secret");
  fs::remove(scratch / "m/config.json");
  fs::create_symlink("../private", scratch / "m/config.json");
  EXPECT_NE(open_error(scratch / "m").find("leads out of its folder"), std::string::npos);
}

TEST(HfFolder, disagreements_are_listed_with_the_closest_name) {
  const ScratchFolder scratch;
  write_sharded(scratch / "m");
  const auto folder = HfFolder::open(scratch / "m");
  ASSERT_TRUE(folder);
  const auto f32 = [](std::string name, Shape shape) { return ExpectedTensor{std::move(name), {DType::kF32, shape}}; };
  const std::vector<ExpectedTensor> all{f32("a.weight", {2, 2}), f32("b.weight", {2}), f32("c.weight", {3})};
  EXPECT_TRUE(check_tensors(*folder, all));
  std::vector<ExpectedTensor> wanted{f32("a.weight", {4}), {"b.weight", {DType::kI32, {2}}}, f32("c.wieght", {3})};
  auto status = check_tensors(*folder, wanted);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, (scratch / "m") +
                                        ": the tensors do not fit the model:"
                                        "\n  1 missing: 'c.wieght' (the file has 'c.weight')"
                                        "\n  1 unexpected: 'c.weight' (the model wants 'c.wieght')"
                                        "\n  1 of the wrong shape: 'a.weight' is BF16[2,2], expected [4]"
                                        "\n  1 of the wrong dtype: 'b.weight' is F32, expected an integer type");
  wanted = all;
  for (int i = 0; i < 25; ++i) wanted.push_back(f32("layers." + std::to_string(100 + i), {1}));
  status = check_tensors(*folder, wanted);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("25 missing: 'layers.100', "), std::string::npos) << status.error().message;
  EXPECT_NE(status.error().message.find("'layers.109', and 15 more"), std::string::npos);
  EXPECT_EQ(status.error().message.find("layers.110"), std::string::npos);
  // Parts of a checkpoint that the model does not have, when it says so.
  const std::vector<ExpectedTensor> two{all[0], all[1]};
  EXPECT_FALSE(check_tensors(*folder, two));
  EXPECT_TRUE(check_tensors(*folder, two, std::vector<std::string>{"c."}));
}

TEST(HfFolder, planned_shards_follow_the_reference) {
  const auto spec = [](std::string name, int64_t bytes) { return TensorSpec{std::move(name), FileDType::kU8, {bytes}}; };
  const std::vector<TensorSpec> specs{spec("d", 40), spec("c", 50), spec("huge", 1000), spec("b", 20), spec("a", 100)};
  const HfLayout layout = plan_hf_layout(specs, 100);
  // d and c fill the first file but for 10 bytes; huge, being too large for any, is closed before it; then b, then a.
  std::string text;
  for (const auto& shard : layout.shards) {
    text += shard.file + ":";
    for (const auto& tensor : shard.tensors) text += " " + tensor.name;
    text += "\n";
  }
  EXPECT_EQ(text,
            "model-00001-of-00004.safetensors: huge\nmodel-00002-of-00004.safetensors: c d\n"
            "model-00003-of-00004.safetensors: b\nmodel-00004-of-00004.safetensors: a\n");
  EXPECT_TRUE(layout.indexed);
  const HfLayout single = plan_hf_layout(specs);
  EXPECT_FALSE(single.indexed);
  ASSERT_EQ(single.shards.size(), 1U);
  EXPECT_EQ(single.shards[0].file, "model.safetensors");
}

TEST(HfFolder, replaces_an_earlier_export_and_nothing_else) {
  const ScratchFolder scratch;
  write_sharded(scratch / "m");
  const auto folder = HfFolder::open(scratch / "m");
  ASSERT_TRUE(folder);
  fs::create_directory(scratch / "out");  // an empty folder is filled
  ASSERT_TRUE(write_hf_folder(scratch / "out", folder->layout(), folder->source()));
  write_file(scratch / "out/model-00009-of-00009.safetensors", "stale");
  ASSERT_TRUE(write_hf_folder(scratch / "out/", folder->layout(), folder->source()));
  EXPECT_EQ(read_folder(scratch / "out"), read_folder(scratch / "m"));
  // Over the folder that is being read.
  const auto before = read_folder(scratch / "m");
  ASSERT_TRUE(write_hf_folder(scratch / "m", folder->layout(), folder->source()));
  EXPECT_EQ(read_folder(scratch / "m"), before);
  // Through a link, the folder itself.
  fs::create_directory_symlink("out", scratch / "link");
  ASSERT_TRUE(write_hf_folder(scratch / "link", folder->layout(), folder->source()));
  EXPECT_TRUE(fs::is_symlink(scratch / "link"));
  fs::remove(scratch / "link");

  write_file(scratch / "out/thesis.txt", "precious");
  const auto status = write_hf_folder(scratch / "out", folder->layout(), folder->source());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.error().message.find("holds 'thesis.txt'"), std::string::npos) << status.error().message;
  EXPECT_EQ(read_file(scratch / "out/thesis.txt"), "precious");
  write_file(scratch / "file", "x");
  EXPECT_FALSE(write_hf_folder(scratch / "file", folder->layout(), folder->source()));
  EXPECT_FALSE(write_hf_folder(scratch / "no/such/parent", folder->layout(), folder->source()));
  EXPECT_FALSE(write_hf_folder("", folder->layout(), folder->source()));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 3);  // m, out, file
}

TEST(HfFolder, a_failed_export_leaves_the_old_one) {
  const ScratchFolder scratch;
  write_sharded(scratch / "m");
  const auto folder = HfFolder::open(scratch / "m");
  ASSERT_TRUE(folder);
  const auto before = read_folder(scratch / "m");
  const auto status = write_hf_folder(scratch / "m", folder->layout(), [&](const TensorSpec& spec) -> Result<std::span<const std::byte>> {
    if (spec.name == "c.weight") return Error{ErrorCode::kDevice, "lost"};
    return folder->find(spec.name)->data;
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(read_folder(scratch / "m"), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1);
}

TEST(HfFolder, layouts_that_cannot_be_written) {
  const ScratchFolder scratch;
  write_sharded(scratch / "m");
  const auto folder = HfFolder::open(scratch / "m");
  ASSERT_TRUE(folder);
  const auto fails = [&](auto change) {
    HfLayout layout = folder->layout();
    change(layout);
    const bool failed = !write_hf_folder(scratch / "out", layout, folder->source());
    EXPECT_FALSE(fs::exists(scratch / "out"));
    return failed;
  };
  EXPECT_TRUE(fails([](HfLayout& layout) { layout.indexed = false; }));
  EXPECT_TRUE(fails([](HfLayout& layout) { layout.shards.clear(); }));
  EXPECT_TRUE(fails([](HfLayout& layout) { layout.shards[0].file = "../x.safetensors"; }));
  EXPECT_TRUE(fails([](HfLayout& layout) { layout.shards[0].file = layout.shards[1].file; }));
  EXPECT_TRUE(fails([](HfLayout& layout) { layout.files.emplace_back("config.json", "again"); }));
  EXPECT_TRUE(fails([](HfLayout& layout) { layout.files.emplace_back("/tmp/x", ""); }));
  EXPECT_TRUE(fails([](HfLayout& layout) { layout.shards[1].tensors = layout.shards[0].tensors; }));
  EXPECT_TRUE(fails([](HfLayout& layout) { layout.shards[0].tensors[0].name = "unknown"; }));
  EXPECT_TRUE(fails([](HfLayout& layout) { layout.shards[0].tensors[0].shape = {5}; }));
}

}  // namespace
}  // namespace glim
