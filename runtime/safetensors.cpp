#include "runtime/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/quote.h"
#include "engine/suggest.h"

namespace glim {
namespace {

static_assert(std::endian::native == std::endian::little, "files hold little-endian numbers, which are used as they are");

using nlohmann::json;

struct DTypeRow {
  std::string_view name;
  int bits;
};
constexpr std::array<DTypeRow, kNumFileDTypes> kDTypes{{{"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
                                                        {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
                                                        {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
                                                        {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

struct Entry {
  TensorSpec spec;
  uint64_t begin = 0, end = 0;
};

// Reads the header as a stream of events, so that nothing wrong is ever built: what a header costs is bounded by its length.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  std::vector<Entry> entries;
  std::optional<FileMetadata> metadata;
  std::string problem;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override { return unexpected(fmt::format("the number {}", printable(text))); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) return fail(fmt::format("the dimension {} is too large", value));
      if (entry().spec.shape.size() == kMaxFileRank) return fail(fmt::format("the shape has more than {} axes", kMaxFileRank));
      entry().spec.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ != Place::kOffsets) return unexpected("a number");
    if (num_offsets_ == 2) return fail("data_offsets must be two numbers, there are more");
    (num_offsets_++ == 0 ? entry().begin : entry().end) = value;
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      metadata->back().second = std::move(text);
      return true;
    }
    if (place_ != Place::kEntry || field_ != kFieldDType) return unexpected("a string");
    const auto dtype = parse_file_dtype(text);
    if (!dtype) {
      std::vector<std::string_view> names;
      for (const auto& row : kDTypes) names.push_back(row.name);
      std::string upper = text;  // "f32" means F32, not I32
      std::transform(upper.begin(), upper.end(), upper.begin(),
                     [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
      return fail(fmt::format("unknown dtype {}{}", quote(text), did_you_mean(upper, names)));
    }
    entry().spec.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return unexpected("an object");
    if (in_metadata_) {
      place_ = Place::kMetadata;
    } else {
      place_ = Place::kEntry;
      fields_seen_ = 0;
    }
    return true;
  }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::kTop: return top_key(name);
      case Place::kMetadata:
        if (!metadata_keys_.insert(name).second) return fail(fmt::format("the key {} appears twice", quote(name)));
        metadata->emplace_back(std::move(name), "");
        return true;
      case Place::kEntry: return entry_key(name);
      default: return unexpected("a key");
    }
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kEnd;
      return true;
    }
    if (place_ == Place::kEntry && fields_seen_ != kAllFields) {
      return fail(fmt::format("{} is missing", (fields_seen_ & kFieldDType) == 0   ? "dtype"
                                               : (fields_seen_ & kFieldShape) == 0 ? "shape"
                                                                                   : "data_offsets"));
    }
    place_ = Place::kTop;
    in_metadata_ = in_entry_ = false;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kEntry || field_ == kFieldDType) return unexpected("an array");
    place_ = field_ == kFieldShape ? Place::kShape : Place::kOffsets;
    num_offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && num_offsets_ != 2)
      return fail(fmt::format("data_offsets must be two numbers, there are {}", num_offsets_));
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string_view text = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const size_t begin = text.find("] ");
    in_metadata_ = in_entry_ = false;
    return fail(fmt::format("byte {}: {}", position, printable(text.substr(begin == std::string_view::npos ? 0 : begin + 2))));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };
  enum Field : unsigned { kFieldDType = 1, kFieldShape = 2, kFieldOffsets = 4 };
  static constexpr unsigned kAllFields = kFieldDType | kFieldShape | kFieldOffsets;

  Entry& entry() { return entries.back(); }

  bool top_key(string_t& name) {
    if (name == "__metadata__") {
      if (metadata) return fail("__metadata__ appears twice");
      metadata.emplace();
      in_metadata_ = true;
      return true;
    }
    if (name.empty()) return fail("a tensor has an empty name");
    if (name.find('\0') != string_t::npos) return fail("a tensor's name has a NUL character");
    entries.push_back({{std::move(name), {}, {}}});
    in_entry_ = true;
    return true;
  }

  bool entry_key(const string_t& name) {
    if (name != "dtype" && name != "shape" && name != "data_offsets") {
      return fail(fmt::format("unknown key {}, expected dtype, shape and data_offsets", quote(name)));
    }
    field_ = name == "dtype" ? kFieldDType : name == "shape" ? kFieldShape : kFieldOffsets;
    if ((fields_seen_ & field_) != 0) return fail(fmt::format("{} appears twice", name));
    fields_seen_ |= field_;
    return true;
  }

  bool unexpected(std::string_view found) {
    std::string_view wanted = "an object of tensors";
    if (place_ == Place::kTop) wanted = in_metadata_ ? "an object of strings" : "an object with dtype, shape and data_offsets";
    if (place_ == Place::kMetadata) wanted = "a string";
    if (place_ == Place::kEntry) wanted = field_ == kFieldDType ? "a string for dtype" : "an array for shape and data_offsets";
    if (place_ == Place::kShape || place_ == Place::kOffsets) wanted = "non-negative whole numbers below 2^64 in shape and data_offsets";
    return fail(fmt::format("expected {}, found {}", wanted, found));
  }

  bool fail(std::string_view what) {
    const std::string where = in_metadata_ ? "__metadata__: " : in_entry_ ? fmt::format("tensor {}: ", quote(entry().spec.name)) : "";
    problem = where + std::string(what);
    return false;
  }

  Place place_ = Place::kStart;
  bool in_metadata_ = false, in_entry_ = false;
  Field field_ = kFieldDType;
  unsigned fields_seen_ = 0;
  int num_offsets_ = 0;
  std::unordered_set<std::string> metadata_keys_;
};

}  // namespace

std::string_view to_string(FileDType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }
int bits_of(FileDType dtype) { return kDTypes[static_cast<size_t>(dtype)].bits; }

std::optional<FileDType> parse_file_dtype(std::string_view text) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == text) return static_cast<FileDType>(i);
  }
  return std::nullopt;
}

FileDType file_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF64: return FileDType::kF64;
    case DType::kF32: return FileDType::kF32;
    case DType::kBF16: return FileDType::kBF16;
    case DType::kI64: return FileDType::kI64;
    case DType::kI32: return FileDType::kI32;
  }
  GLIM_CHECK(false, "unknown dtype");
  return FileDType::kF32;
}

TensorSpec tensor_spec(std::string name, const TensorType& type) {
  return {std::move(name), file_dtype(type.dtype), {type.shape.dims.begin(), type.shape.dims.begin() + type.shape.rank}};
}

std::optional<uint64_t> checked_bytes(FileDType dtype, std::span<const int64_t> shape) {
  uint64_t count = 1, bits = 0;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(count, static_cast<uint64_t>(dim), &count)) return std::nullopt;
  }
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(bits_of(dtype)), &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

std::string describe(const TensorSpec& spec) { return fmt::format("{}[{}]", to_string(spec.dtype), fmt::join(spec.shape, ",")); }

Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> bytes, const std::string& path) {
  const auto fail = [&](std::string_view what) { return invalid_file(fmt::format("{}: not a safetensors file: {}", path, what)); };
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) return fail(fmt::format("it has {} bytes, fewer than the 8 of the header length", bytes.size()));
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes)
    return fail(fmt::format("the header length {} is over the limit of {}", header_bytes, kMaxHeaderBytes));
  if (header_bytes > bytes.size() - 8)
    return fail(fmt::format("the header length {} goes past the end of the file ({} bytes)", header_bytes, bytes.size()));
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  if (!header.starts_with('{')) return fail("the header does not start with '{'");
  if (header.find('\0') != std::string_view::npos) return fail("the header has a NUL byte");  // the JSON library would stop there

  HeaderReader reader;
  if (!json::sax_parse(header, &reader)) return fail("header: " + reader.problem);
  auto& entries = reader.entries;
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });

  const auto data = bytes.subspan(8 + header_bytes);
  SafetensorsContent content;
  content.tensors.reserve(entries.size());
  for (auto& entry : entries) content.tensors.push_back({std::move(entry.spec), {}});
  std::unordered_set<std::string_view> names;
  for (const FileTensor& tensor : content.tensors) {
    if (!names.insert(tensor.spec.name).second) return fail(fmt::format("header: tensor {} appears twice", quote(tensor.spec.name)));
  }
  uint64_t end = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const TensorSpec& spec = content.tensors[i].spec;
    const auto fail_tensor = [&](std::string_view what) { return fail(fmt::format("header: tensor {}: {}", quote(spec.name), what)); };
    const std::string offsets = fmt::format("data_offsets [{},{}]", entry.begin, entry.end);
    if (entry.end < entry.begin) return fail_tensor(offsets + " end before they begin");
    if (entry.begin < end) return fail_tensor(fmt::format("{} overlap the tensor before, which ends at {}", offsets, end));
    if (entry.begin > end) return fail_tensor(fmt::format("{} leave a hole: the tensor before ends at {}", offsets, end));
    if (entry.end > data.size()) return fail_tensor(fmt::format("{} go past the end of the data ({} bytes)", offsets, data.size()));
    const auto size = checked_bytes(spec.dtype, spec.shape);
    if (!size) return fail_tensor(fmt::format("{} has no valid size in bytes", describe(spec)));
    if (*size != entry.end - entry.begin) {
      return fail_tensor(fmt::format("{} takes {} bytes, but {} hold {}", describe(spec), *size, offsets, entry.end - entry.begin));
    }
    content.tensors[i].data = data.subspan(entry.begin, *size);
    end = entry.end;
  }
  if (end != data.size()) return fail(fmt::format("{} bytes after the last tensor", data.size() - end));
  content.metadata = std::move(reader.metadata);
  return content;
}

SafetensorsFile::SafetensorsFile(MappedFile file, SafetensorsContent content) : file_(std::move(file)), content_(std::move(content)) {
  index_.reserve(content_.tensors.size());
  for (size_t i = 0; i < content_.tensors.size(); ++i) index_.emplace(content_.tensors[i].spec.name, i);
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  GLIM_ASSIGN(MappedFile mapped, MappedFile::open(path));
  GLIM_ASSIGN(SafetensorsContent content, parse_safetensors(mapped.bytes(), path));
  return SafetensorsFile(std::move(mapped), std::move(content));
}

const FileTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &content_.tensors[found->second];
}

}  // namespace glim
