#pragma once
// Typed 4-byte indices. Graph code never holds pointers to nodes or values.
#include <compare>
#include <cstdint>

namespace glim {

template <class Tag, class Int = uint32_t>
struct Id {
  static constexpr Int kNone = static_cast<Int>(~Int{0});
  Int index = kNone;
  [[nodiscard]] constexpr bool valid() const { return index != kNone; }
  friend constexpr auto operator<=>(Id, Id) = default;
};

using ValueId = Id<struct ValueTag>;
using NodeId = Id<struct NodeTag>;
using OpId = Id<struct OpTag, uint16_t>;  // row of the op table

}  // namespace glim
