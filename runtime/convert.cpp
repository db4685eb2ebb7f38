#include "runtime/convert.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "engine/quote.h"
#include "ops/bf16.h"

namespace glim {
namespace {

// Types of one element as it lies in a file; the third is Bf16.
struct Half {
  uint16_t bits;
};
struct Bool {
  uint8_t bits;
};

float widen(Half value) {
  const uint32_t sign = (value.bits & 0x8000U) << 16, exponent = (value.bits >> 10) & 31U, mantissa = value.bits & 0x3ffU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // subnormal, exact
  return sign != 0 ? -magnitude : magnitude;
}

// Rounds to an f32 whose last bit is set whenever something was cut off ("round to odd"). Rounding that to at most 22 bits of
// mantissa gives the same as rounding the value once.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // towards zero; infinity becomes the largest float
  return std::bit_cast<float>(bits | 1U);
}

template <std::integral N>
float round_to_odd(N value) {
  if (static_cast<N>(static_cast<int32_t>(value)) == value) return round_to_odd(static_cast<double>(value));  // exact
  // At least 21 bits, the last of which stands for all that were cut off.
  const auto high = static_cast<N>(value >> 11 | static_cast<N>((value & 0x7ff) != 0));
  return round_to_odd(static_cast<double>(high) * 2048.0);
}

Half narrow_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<uint16_t>(sign | 0x7e00U | (magnitude >> 13 & 0x3ffU))};
  if (magnitude >= 0x477ff000U) return {static_cast<uint16_t>(sign | 0x7c00U)};  // 65520 and more round to infinity
  if (magnitude < 0x38800000U) {                                                 // below 2^-14: subnormal, in units of 2^-24
    // Adding 0.5 leaves a float whose last bit is worth 2^-24, so the processor does the rounding.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U))};
  }
  const uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U);
  return {static_cast<uint16_t>(sign | ((rounded >> 13) - (112U << 10)))};
}

template <class T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, Bf16>;

// A file element as a number C++ computes with: float or double for floats, 64-bit whole numbers otherwise.
template <class T>
auto number(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return widen(value);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return static_cast<float>(value);
  } else if constexpr (std::is_same_v<T, Bool>) {
    return static_cast<uint64_t>(value.bits);
  } else if constexpr (std::is_floating_point_v<T>) {
    return value;
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<int64_t>(value);
  } else {
    return static_cast<uint64_t>(value);
  }
}

template <class To, class N>
bool to_float(N value, To& out) {
  if constexpr (std::is_same_v<To, double>) {
    out = static_cast<double>(value);
    return true;
  } else {
    float wide = 0;
    if constexpr (std::is_same_v<To, float> || std::is_same_v<N, float>) {
      wide = static_cast<float>(value);
    } else {
      wide = round_to_odd(value);
    }
    if constexpr (std::is_same_v<To, float>) out = wide;
    if constexpr (std::is_same_v<To, Bf16>) out = Bf16(wide);
    if constexpr (std::is_same_v<To, Half>) out = narrow_half(wide);
    bool finite = true;
    if constexpr (std::is_floating_point_v<N>) finite = std::isfinite(value);
    return !finite || std::isfinite(number(out));
  }
}

template <class To, class N>
bool to_whole(N value, To& out) {
  using Limits = std::numeric_limits<std::conditional_t<std::is_same_v<To, Bool>, bool, To>>;
  if constexpr (std::is_floating_point_v<N>) {
    // 2^bits is exact as a float; the largest whole number is not.
    if (!(value == std::trunc(value)) || !(value < std::ldexp(N{1}, Limits::digits)) || !(value >= static_cast<N>(Limits::min())))
      return false;
  } else {
    if (std::cmp_less(value, static_cast<int64_t>(Limits::min())) || std::cmp_greater(value, static_cast<uint64_t>(Limits::max())))
      return false;
  }
  if constexpr (std::is_same_v<To, Bool>) {
    out = {static_cast<uint8_t>(value)};
  } else {
    out = static_cast<To>(value);
  }
  return true;
}

// Returns the position of the first value that does not fit, or -1.
template <class From, class To>
int64_t convert_all(const std::byte* from, std::byte* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    From in;
    To out{};
    std::memcpy(&in, from + i * sizeof(From), sizeof in);
    bool fits = true;
    if constexpr (std::is_same_v<From, Bool>) fits = in.bits <= 1;
    if constexpr (kIsFloat<To>) {
      fits = to_float(number(in), out) && fits;
    } else {
      fits = to_whole(number(in), out) && fits;
    }
    if (!fits) return static_cast<int64_t>(i);
    std::memcpy(to + i * sizeof(To), &out, sizeof out);
  }
  return -1;
}

// Calls `use` with an element of the C++ type that belongs to `dtype`.
template <class F>
int64_t with_element(FileDType dtype, F use) {
  switch (dtype) {
    case FileDType::kBool: return use(Bool{});
    case FileDType::kU8: return use(uint8_t{});
    case FileDType::kI8: return use(int8_t{});
    case FileDType::kU16: return use(uint16_t{});
    case FileDType::kI16: return use(int16_t{});
    case FileDType::kU32: return use(uint32_t{});
    case FileDType::kI32: return use(int32_t{});
    case FileDType::kU64: return use(uint64_t{});
    case FileDType::kI64: return use(int64_t{});
    case FileDType::kF16: return use(Half{});
    case FileDType::kBF16: return use(Bf16{});
    case FileDType::kF32: return use(float{});
    case FileDType::kF64: return use(double{});
    default: break;
  }
  GLIM_CHECK(false, "the type is not convertible");
  return -1;
}

std::string value_text(FileDType dtype, const std::byte* at) {
  std::string text;
  with_element(dtype, [&](auto element) -> int64_t {
    std::memcpy(&element, at, sizeof element);
    text = fmt::format("{}", number(element));
    return 0;
  });
  return text;
}

}  // namespace

bool is_convertible(FileDType dtype) {
  switch (dtype) {
    case FileDType::kF4:
    case FileDType::kF6E2M3:
    case FileDType::kF6E3M2:
    case FileDType::kF8E5M2:
    case FileDType::kF8E4M3:
    case FileDType::kF8E8M0:
    case FileDType::kC64: return false;
    default: return true;
  }
}

bool is_float(FileDType dtype) {
  return dtype == FileDType::kF16 || dtype == FileDType::kBF16 || dtype == FileDType::kF32 || dtype == FileDType::kF64;
}

Status convert_elements(FileDType from_dtype, std::span<const std::byte> from, FileDType to_dtype, std::span<std::byte> to,
                        std::string_view what) {
  for (const FileDType dtype : {from_dtype, to_dtype}) {
    if (!is_convertible(dtype))
      return invalid_file(fmt::format("{}: elements of type {} cannot be converted", printable(what), to_string(dtype)));
  }
  const size_t from_bytes = static_cast<size_t>(bits_of(from_dtype)) / 8, to_bytes = static_cast<size_t>(bits_of(to_dtype)) / 8;
  const size_t count = from.size() / from_bytes;
  GLIM_CHECK(from.size() == count * from_bytes && to.size() == count * to_bytes, "both sides hold the same number of elements");
  if (count == 0) return ok();
  if (from_dtype == to_dtype && from_dtype != FileDType::kBool) {
    std::memcpy(to.data(), from.data(), from.size());
    return ok();
  }
  const int64_t bad = with_element(from_dtype, [&](auto in) {
    return with_element(to_dtype, [&](auto out) { return convert_all<decltype(in), decltype(out)>(from.data(), to.data(), count); });
  });
  if (bad < 0) return ok();
  return invalid_file(fmt::format("{}: the value {} at position {} does not fit in {} (stored as {})", printable(what),
                                  value_text(from_dtype, from.data() + static_cast<size_t>(bad) * from_bytes), bad, to_string(to_dtype),
                                  to_string(from_dtype)));
}

Result<std::vector<std::byte>> convert_elements(const FileTensor& tensor, FileDType to_dtype) {
  const std::string what = "tensor " + quote(tensor.spec.name);
  if (!is_convertible(tensor.spec.dtype)) {
    return invalid_file(fmt::format("{}: elements of type {} cannot be converted", what, to_string(tensor.spec.dtype)));
  }
  const size_t count = tensor.data.size() / (static_cast<size_t>(bits_of(tensor.spec.dtype)) / 8);
  std::vector<std::byte> out(count * (static_cast<size_t>(bits_of(to_dtype)) / 8));
  GLIM_TRY(convert_elements(tensor.spec.dtype, tensor.data, to_dtype, out, what));
  return out;
}

}  // namespace glim
