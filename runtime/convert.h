#pragma once
// Conversion of elements between the types of files, on the host. Floats round to nearest even, once (f64 -> bf16 does not go
// through f32). Nothing is lost in silence: a whole number that does not fit, a fraction that would become a whole number, or
// a finite float that would become infinite is an error that names its position. (Whole numbers too long for a float's
// mantissa are rounded.)
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/safetensors.h"

namespace glim {

// Types that can be converted: BOOL, U8, I8, I16, U16, F16, BF16, I32, U32, F32, F64, I64, U64.
[[nodiscard]] bool is_convertible(FileDType dtype);
[[nodiscard]] bool is_float(FileDType dtype);  // F16, BF16, F32, F64

// `from` and `to` hold the same number of elements, in any alignment; `what` names the tensor in messages.
// Errors: kInvalidFile for a value that does not fit, or for a type that cannot be converted.
[[nodiscard]] Status convert_elements(FileDType from_dtype, std::span<const std::byte> from, FileDType to_dtype, std::span<std::byte> to,
                                      std::string_view what);
[[nodiscard]] Result<std::vector<std::byte>> convert_elements(const FileTensor& tensor, FileDType to_dtype);

}  // namespace glim
