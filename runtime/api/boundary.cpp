#include "runtime/api/boundary.h"

#include <fmt/format.h>

#include <atomic>

#include "runtime/model.h"

namespace glim::v0 {

#define GLIM_TEXT_INNER(x) #x
#define GLIM_TEXT(x) GLIM_TEXT_INNER(x)
const char* version() { return GLIM_TEXT(GLIM_VERSION_MAJOR) "." GLIM_TEXT(GLIM_VERSION_MINOR) "." GLIM_TEXT(GLIM_VERSION_PATCH); }

// ---- errors

static_assert(static_cast<int>(ErrorCode::kInvalidArgument) == static_cast<int>(glim::ErrorCode::kInvalidArgument));
static_assert(static_cast<int>(ErrorCode::kInvalidFile) == static_cast<int>(glim::ErrorCode::kInvalidFile));
static_assert(static_cast<int>(ErrorCode::kOutOfMemory) == static_cast<int>(glim::ErrorCode::kOutOfMemory));
static_assert(static_cast<int>(ErrorCode::kIo) == static_cast<int>(glim::ErrorCode::kIo));
static_assert(static_cast<int>(ErrorCode::kNumeric) == static_cast<int>(glim::ErrorCode::kNumeric));
static_assert(static_cast<int>(ErrorCode::kCommunication) == static_cast<int>(glim::ErrorCode::kCommunication));
static_assert(static_cast<int>(ErrorCode::kDevice) == static_cast<int>(glim::ErrorCode::kDevice));
static_assert(static_cast<int>(ErrorCode::kCancelled) == static_cast<int>(glim::ErrorCode::kCancelled));

Error to_public(glim::Error error) {
  return {static_cast<ErrorCode>(error.code), std::move(error.message), std::move(error.where.file), error.where.line, error.where.column};
}

glim::Error to_engine(Error error) {
  // The engine throws nothing, so it has no word for kInternal; what a callback calls so is the callback's own failure.
  const auto code = error.code == ErrorCode::kInternal ? glim::ErrorCode::kInvalidArgument : static_cast<glim::ErrorCode>(error.code);
  return {code, std::move(error.message), {std::move(error.file), error.line, error.column}};
}

std::string Error::to_string() const { return to_engine(*this).to_string(); }

std::string describe_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return fmt::format("an exception was thrown: {}", error.what());
  } catch (...) {
    return "an exception of an unknown type was thrown";
  }
}

// ---- bugs

namespace {
std::atomic<BugHandler> host_handler{nullptr};
}

void route_bugs() {
  static const bool is_routed = [] {
    glim::set_bug_handler([](std::string_view report) {
      if (const BugHandler to = host_handler.load(); to != nullptr) to(report);
    });
    return true;
  }();
  (void)is_routed;
}

void set_bug_handler(BugHandler handler) {
  host_handler = handler;
  route_bugs();
}

// ---- tensors

static_assert(static_cast<int>(DType::kF64) == static_cast<int>(glim::DType::kF64));
static_assert(static_cast<int>(DType::kF32) == static_cast<int>(glim::DType::kF32));
static_assert(static_cast<int>(DType::kBF16) == static_cast<int>(glim::DType::kBF16));
static_assert(static_cast<int>(DType::kI64) == static_cast<int>(glim::DType::kI64));
static_assert(static_cast<int>(DType::kI32) == static_cast<int>(glim::DType::kI32));

std::string_view to_string(DType dtype) { return glim::to_string(to_engine(dtype)); }

TensorType to_public(const glim::TensorType& type) {
  return {to_public(type.dtype), {type.shape.dims.begin(), type.shape.dims.begin() + type.shape.rank}};
}

glim::Result<glim::TensorType> to_engine(const TensorType& type) {
  GLIM_ASSIGN(const Shape shape, make_shape(type.shape));
  return glim::TensorType{to_engine(type.dtype), shape};
}

double Tensor::at(int64_t i) const {
  const size_t element = size_of(type.dtype);
  if (i < 0 || static_cast<size_t>(i) >= bytes.size() / element) return 0;
  glim::TensorType one{to_engine(type.dtype), {1}};
  const auto* from = bytes.data() + static_cast<size_t>(i) * element;
  return HostTensor{one, {from, from + element}}.at(0);
}

}  // namespace glim::v0
