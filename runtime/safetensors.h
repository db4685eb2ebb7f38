#pragma once
// The safetensors format: 8 bytes of header length (little-endian), a JSON header {name: {dtype, shape, data_offsets}},
// padded with spaces, then the tensors' bytes without a gap. Reading maps the file and copies nothing.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/dtype.h"
#include "engine/error.h"
#include "engine/type.h"
#include "runtime/mapped_file.h"

namespace glim {

class Checksum;

// Element types of files, in the order of the reference library, which sorts the tensors that it writes by it.
enum class FileDType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};
inline constexpr int kNumFileDTypes = 20;

[[nodiscard]] std::string_view to_string(FileDType dtype);  // as in files: "BF16"
[[nodiscard]] std::optional<FileDType> parse_file_dtype(std::string_view text);
[[nodiscard]] int bits_of(FileDType dtype);  // of one element: 4 to 64
[[nodiscard]] FileDType file_dtype(DType dtype);

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxFileRank = 64;

struct TensorSpec {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;  // up to kMaxFileRank axes, which may be more than the engine's four
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};
[[nodiscard]] TensorSpec tensor_spec(std::string name, const TensorType& type);
// Bytes of a tensor; nothing when a dimension is negative, the size overflows, or it is no whole number of bytes.
[[nodiscard]] std::optional<uint64_t> checked_bytes(FileDType dtype, std::span<const int64_t> shape);
[[nodiscard]] std::string describe(const TensorSpec& spec);  // "BF16[512,64]"

struct FileTensor {
  TensorSpec spec;
  std::span<const std::byte> data;  // not aligned to the element size
};

// The file's __metadata__, in file order.
using FileMetadata = std::vector<std::pair<std::string, std::string>>;

// What the bytes of a whole file say, checked in every respect.
struct SafetensorsContent {
  std::vector<FileTensor> tensors;  // in the order of their bytes; the data are spans of those bytes
  std::optional<FileMetadata> metadata;
};
// `path` is for messages only. Errors: kInvalidFile with the path and what is wrong where.
[[nodiscard]] Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> bytes, const std::string& path);

// A validated file. Spans and string views live as long as this object (moving it is fine).
class SafetensorsFile {
 public:
  // Errors: kIo, or kInvalidFile with the path and what is wrong where.
  [[nodiscard]] static Result<SafetensorsFile> open(const std::string& path);

  [[nodiscard]] std::span<const FileTensor> tensors() const { return content_.tensors; }  // in the order of their bytes
  [[nodiscard]] const FileTensor* find(std::string_view name) const;                      // nullptr: no such tensor
  [[nodiscard]] const std::optional<FileMetadata>& metadata() const { return content_.metadata; }
  [[nodiscard]] const std::string& path() const { return file_.path(); }

 private:
  SafetensorsFile(MappedFile file, SafetensorsContent content);

  MappedFile file_;
  SafetensorsContent content_;
  std::unordered_map<std::string_view, size_t> index_;
};

// The order in which the reference library writes: by dtype from last to first, then by name.
void sort_as_reference(std::vector<TensorSpec>& specs);
// The 8 length bytes and the padded header, byte for byte as the reference library writes them. Errors: kInvalidArgument for
// a name that is empty, repeated, reserved, not UTF-8 or has a NUL, for a bad shape, and for a header over kMaxHeaderBytes.
[[nodiscard]] Result<std::string> safetensors_header(std::span<const TensorSpec> specs, const std::optional<FileMetadata>& metadata);

// Gives a tensor's bytes; they must stay valid until the next call.
using TensorSource = std::function<Result<std::span<const std::byte>>(const TensorSpec&)>;
// Writes the tensors in the given order, asking `source` for one after another, so nothing is held twice. Atomic: the file
// appears complete or not at all, and an old file of that name stays until then. Every byte is also added to `checksum`.
[[nodiscard]] Status write_safetensors(const std::string& path, std::span<const TensorSpec> specs,
                                       const std::optional<FileMetadata>& metadata, const TensorSource& source,
                                       Checksum* checksum = nullptr);
[[nodiscard]] Status write_safetensors(const std::string& path, std::span<const FileTensor> tensors,
                                       const std::optional<FileMetadata>& metadata);

}  // namespace glim
