#include "runtime/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace glim {
namespace {

template <class To, class From>
Result<std::vector<To>> convert(FileDType from_dtype, const std::vector<From>& from, FileDType to_dtype) {
  std::vector<To> to(from.size());
  if (auto status = convert_elements(from_dtype, std::as_bytes(std::span(from)), to_dtype, std::as_writable_bytes(std::span(to)), "x");
      !status) {
    return status.error();
  }
  return to;
}

// The compiler's own half type is the reference.
uint16_t half_bits(_Float16 value) { return std::bit_cast<uint16_t>(value); }

TEST(Convert, every_half_widens_exactly) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto wide = convert<float>(FileDType::kF16, all, FileDType::kF32);
  const auto wider = convert<double>(FileDType::kF16, all, FileDType::kF64);
  const auto back = convert<uint16_t>(FileDType::kF32, *wide, FileDType::kF16);
  ASSERT_TRUE(wide && wider && back);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto expected = static_cast<float>(std::bit_cast<_Float16>(all[i]));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan((*wide)[i]) && std::isnan((*wider)[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>((*wide)[i]), std::bit_cast<uint32_t>(expected)) << i;
      ASSERT_EQ((*wider)[i], static_cast<double>(expected)) << i;
    }
    EXPECT_EQ((*back)[i], std::isnan(expected) ? all[i] | 0x200 : all[i]) << i;  // a NaN becomes a quiet one
  }
}

// The bfloat16 nearest to a value, by search among its neighbours.
uint16_t nearest_bf16(double value) {
  const auto widened = [](uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits << 16)); };
  const double magnitude = std::fabs(value);
  uint32_t low = 0;  // the largest bfloat16 not above
  for (uint32_t step = 1U << 14; step != 0; step /= 2) {
    if (low + step < 0x7f80 && widened(low + step) <= magnitude) low += step;
  }
  const double next = low == 0x7f7f ? 0x1p128 : widened(low + 1), below = magnitude - widened(low), above = next - magnitude;
  if (above < below || (above == below && (low & 1) != 0)) ++low;
  return static_cast<uint16_t>(low | (std::signbit(value) ? 0x8000U : 0U));
}

std::vector<double> interesting() {
  std::mt19937_64 random(7);
  std::vector<double> out{0.0,
                          -0.0,
                          1.0,
                          1 + 0x1p-8,
                          1 + 0x1p-8 + 0x1p-40,
                          1 + 0x1p-8 - 0x1p-40,
                          1 + 3 * 0x1p-8,
                          1 + 0x1p-11,
                          1 + 0x1p-11 + 0x1p-50,
                          1 + 0x1p-11 - 0x1p-50,
                          1 + 3 * 0x1p-11,
                          0x1p-24,
                          0x1p-25,
                          0x1.0000000001p-25,
                          0x1p-14,
                          0x1.ffcp-15,
                          0x1.ffep-15,
                          0x1p-133,
                          0x1p-134,
                          0x1.00001p-134,
                          3 * 0x1p-134};
  for (int i = 0; i < 100'000; ++i) {
    const double mantissa = 1 + std::ldexp(static_cast<double>(random() >> 12), -52);
    // Half of them lie close to a tie of bf16 or f16.
    const int cut = (i & 3) == 0 ? 8 : (i & 3) == 1 ? 11 : 52;
    const double near = std::floor(std::ldexp(mantissa, cut)) * std::ldexp(1.0, -cut) + ((i & 4) != 0 ? 0x1p-45 : 0.0);
    out.push_back(std::ldexp((i & 8) != 0 ? near : -near, static_cast<int>(random() % 41) - 26));
  }
  return out;
}

TEST(Convert, floats_round_once_to_nearest_even) {
  for (const double value : interesting()) {
    if (std::fabs(value) >= 65519) continue;
    const std::vector<double> in{value};
    ASSERT_EQ((*convert<float>(FileDType::kF64, in, FileDType::kF32))[0], static_cast<float>(value));
    ASSERT_EQ((*convert<uint16_t>(FileDType::kF64, in, FileDType::kF16))[0], half_bits(static_cast<_Float16>(value))) << value;
    ASSERT_EQ((*convert<uint16_t>(FileDType::kF64, in, FileDType::kBF16))[0], nearest_bf16(value)) << value;
    const std::vector<float> single{static_cast<float>(value)};
    ASSERT_EQ((*convert<uint16_t>(FileDType::kF32, single, FileDType::kF16))[0], half_bits(static_cast<_Float16>(single[0]))) << value;
    ASSERT_EQ((*convert<uint16_t>(FileDType::kF32, single, FileDType::kBF16))[0], nearest_bf16(static_cast<double>(single[0]))) << value;
  }
}

TEST(Convert, infinities_and_nans_stay) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> in{inf, -inf, nan};
  for (const FileDType to : {FileDType::kF16, FileDType::kBF16}) {
    const auto narrow = convert<uint16_t>(FileDType::kF64, in, to);
    ASSERT_TRUE(narrow);
    const auto wide = convert<double>(to, *narrow, FileDType::kF64);
    EXPECT_EQ((*wide)[0], inf);
    EXPECT_EQ((*wide)[1], -inf);
    EXPECT_TRUE(std::isnan((*wide)[2]));
  }
  // A NaN whose payload lies only in the bits that go.
  const std::vector<float> sneaky{std::bit_cast<float>(0x7f800001U)};
  EXPECT_EQ((*convert<uint16_t>(FileDType::kF32, sneaky, FileDType::kBF16))[0] & 0x7fc0, 0x7fc0);
  EXPECT_EQ((*convert<uint16_t>(FileDType::kF32, sneaky, FileDType::kF16))[0] & 0x7e00, 0x7e00);
}

TEST(Convert, finite_values_never_become_infinite) {
  EXPECT_TRUE(convert<uint16_t>(FileDType::kF32, std::vector<float>{65504, 65519.9F}, FileDType::kF16));
  const auto half = convert<uint16_t>(FileDType::kF32, std::vector<float>{1, 65520}, FileDType::kF16);
  ASSERT_FALSE(half);
  EXPECT_EQ(half.error().message, "x: the value 65520 at position 1 does not fit in F16 (stored as F32)");
  EXPECT_FALSE(convert<float>(FileDType::kF64, std::vector<double>{-1e39}, FileDType::kF32));
  EXPECT_FALSE(convert<uint16_t>(FileDType::kF64, std::vector<double>{1e39}, FileDType::kBF16));
  EXPECT_FALSE(convert<uint16_t>(FileDType::kF64, std::vector<double>{1e300}, FileDType::kBF16));
  EXPECT_FALSE(convert<uint16_t>(FileDType::kF32, std::vector<float>{3.4e38F}, FileDType::kBF16));
  EXPECT_TRUE(convert<uint16_t>(FileDType::kF32, std::vector<float>{3.38e38F}, FileDType::kBF16));
  EXPECT_FALSE(convert<uint16_t>(FileDType::kI64, std::vector<int64_t>{70'000}, FileDType::kF16));
}

TEST(Convert, whole_numbers_are_checked) {
  const auto ids = convert<int32_t>(FileDType::kI64, std::vector<int64_t>{0, -100, 2147483647, -2147483648LL}, FileDType::kI32);
  ASSERT_TRUE(ids);
  EXPECT_EQ(*ids, (std::vector<int32_t>{0, -100, 2147483647, INT32_MIN}));
  const auto bad = convert<int32_t>(FileDType::kI64, std::vector<int64_t>{5, 6, 2147483648LL, 7}, FileDType::kI32);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidFile);
  EXPECT_EQ(bad.error().message, "x: the value 2147483648 at position 2 does not fit in I32 (stored as I64)");
  EXPECT_FALSE(convert<int32_t>(FileDType::kI64, std::vector<int64_t>{-2147483649LL}, FileDType::kI32));
  EXPECT_FALSE(convert<int64_t>(FileDType::kU64, std::vector<uint64_t>{uint64_t{1} << 63}, FileDType::kI64));
  EXPECT_FALSE(convert<uint64_t>(FileDType::kI8, std::vector<int8_t>{-1}, FileDType::kU64));
  EXPECT_FALSE(convert<uint8_t>(FileDType::kI16, std::vector<int16_t>{256}, FileDType::kU8));
  EXPECT_EQ(*convert<int16_t>(FileDType::kI8, std::vector<int8_t>{-128, 127}, FileDType::kI16), (std::vector<int16_t>{-128, 127}));
  EXPECT_EQ(*convert<uint8_t>(FileDType::kU8, std::vector<uint8_t>{200}, FileDType::kU8), (std::vector<uint8_t>{200}));
}

TEST(Convert, floats_to_whole_numbers_must_be_whole) {
  EXPECT_EQ(*convert<int32_t>(FileDType::kF32, std::vector<float>{-3, 0, 16777216, -0.0F}, FileDType::kI32),
            (std::vector<int32_t>{-3, 0, 16777216, 0}));
  for (const float bad :
       {0.5F, 2147483648.0F, -2147483904.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(convert<int32_t>(FileDType::kF32, std::vector<float>{bad}, FileDType::kI32)) << bad;
  }
  EXPECT_FALSE(convert<int64_t>(FileDType::kF64, std::vector<double>{0x1p63}, FileDType::kI64));
  EXPECT_EQ((*convert<int64_t>(FileDType::kF64, std::vector<double>{-0x1p63}, FileDType::kI64))[0], INT64_MIN);
  EXPECT_FALSE(convert<uint64_t>(FileDType::kF64, std::vector<double>{-1}, FileDType::kU64));
  EXPECT_EQ((*convert<uint64_t>(FileDType::kF32, std::vector<float>{0x1p63F}, FileDType::kU64))[0], uint64_t{1} << 63);
}

TEST(Convert, whole_numbers_round_once_to_floats) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 50'000; ++i) {
    const auto value = static_cast<int64_t>(random() >> (random() % 63));
    const int64_t signed_value = (i & 1) != 0 ? value / 2 : -(value / 2);
    ASSERT_EQ((*convert<float>(FileDType::kI64, std::vector<int64_t>{signed_value}, FileDType::kF32))[0], static_cast<float>(signed_value));
    ASSERT_EQ((*convert<double>(FileDType::kI64, std::vector<int64_t>{signed_value}, FileDType::kF64))[0],
              static_cast<double>(signed_value));
    if (std::abs(signed_value) < (int64_t{1} << 53)) {
      ASSERT_EQ((*convert<uint16_t>(FileDType::kI64, std::vector<int64_t>{signed_value}, FileDType::kBF16))[0],
                nearest_bf16(static_cast<double>(signed_value)));
    }
  }
  // Just over a tie of bf16, by a bit that no double holds: 2^62 + 2^54 is the tie.
  const int64_t over = (int64_t{1} << 62) + (int64_t{1} << 54) + 1;
  EXPECT_EQ((*convert<uint16_t>(FileDType::kI64, std::vector<int64_t>{over, over - 1, -over}, FileDType::kBF16)),
            (std::vector<uint16_t>{0x5e81, 0x5e80, 0xde81}));
}

TEST(Convert, truth_values) {
  EXPECT_EQ(*convert<int32_t>(FileDType::kBool, std::vector<uint8_t>{0, 1, 1}, FileDType::kI32), (std::vector<int32_t>{0, 1, 1}));
  EXPECT_EQ(*convert<float>(FileDType::kBool, std::vector<uint8_t>{0, 1}, FileDType::kF32), (std::vector<float>{0, 1}));
  EXPECT_FALSE(convert<int32_t>(FileDType::kBool, std::vector<uint8_t>{2}, FileDType::kI32));
  EXPECT_FALSE(convert<uint8_t>(FileDType::kBool, std::vector<uint8_t>{2}, FileDType::kBool));
  EXPECT_FALSE(convert<uint8_t>(FileDType::kI32, std::vector<int32_t>{2}, FileDType::kBool));
  EXPECT_EQ(*convert<uint8_t>(FileDType::kI32, std::vector<int32_t>{1, 0}, FileDType::kBool), (std::vector<uint8_t>{1, 0}));
}

TEST(Convert, tensors_of_other_types_are_an_error_when_used) {
  const std::vector<std::byte> data(4);
  for (const FileDType dtype : {FileDType::kF8E4M3, FileDType::kF8E5M2, FileDType::kF8E8M0, FileDType::kF4, FileDType::kF6E2M3,
                                FileDType::kF6E3M2, FileDType::kC64}) {
    EXPECT_FALSE(is_convertible(dtype));
    const auto out = convert_elements(FileTensor{{"w", dtype, {4}}, data}, FileDType::kF32);
    ASSERT_FALSE(out);
    EXPECT_EQ(out.error().message, "tensor 'w': elements of type " + std::string(to_string(dtype)) + " cannot be converted");
  }
}

TEST(Convert, unaligned_data) {
  std::vector<std::byte> raw(1 + 8);
  const float values[2] = {1.5F, -2.0F};
  std::memcpy(raw.data() + 1, values, 8);
  const auto out = convert_elements(FileTensor{{"w", FileDType::kF32, {2}}, std::span<const std::byte>(raw).subspan(1)}, FileDType::kF64);
  ASSERT_TRUE(out);
  double wide[2];
  std::memcpy(wide, out->data(), 16);
  EXPECT_EQ(wide[0], 1.5);
  EXPECT_EQ(wide[1], -2.0);
}

}  // namespace
}  // namespace glim
