#pragma once
// Where the public interface (namespace glim::v0, runtime/glim.h) meets the engine (namespace glim): the two vocabularies, and exceptions
// that become errors. Every file of this folder includes this instead of runtime/glim.h.
#define GLIM_IMPLEMENTATION
#include "runtime/glim.h"

#include <exception>
#include <new>

#include "engine/error.h"
#include "engine/type.h"

namespace glim::v0 {

[[nodiscard]] Error to_public(glim::Error error);
[[nodiscard]] glim::Error to_engine(Error error);
[[nodiscard]] TensorType to_public(const glim::TensorType& type);
[[nodiscard]] glim::Result<glim::TensorType> to_engine(const TensorType& type);  // an error for a shape that cannot exist
[[nodiscard]] constexpr DType to_public(glim::DType dtype) { return static_cast<DType>(dtype); }
[[nodiscard]] constexpr glim::DType to_engine(DType dtype) { return static_cast<glim::DType>(dtype); }

// From the first model on, bugs go to the host's handler, or nowhere; without this the engine prints them.
void route_bugs();

// What a callback of the host threw.
[[nodiscard]] std::string describe_exception();  // of the exception that is being handled

template <class T>
struct PublicOf {
  using Type = Result<T>;
};
template <>
struct PublicOf<Unit> {
  using Type = Status;
};

// Runs a body that returns an engine Result, as a public Result.
template <class Body>
auto guarded(Body&& body) {
  const auto convert = []<class T>(glim::Result<T> result) -> typename PublicOf<T>::Type {
    if (!result) return to_public(std::move(result.error()));
    if constexpr (std::is_same_v<T, Unit>) {
      return {};
    } else {
      return *std::move(result);
    }
  };
  using Public = decltype(convert(body()));
  try {
    return convert(body());
  } catch (const std::bad_alloc&) {
    return Public(Error{ErrorCode::kOutOfMemory, "this machine gives no more memory", "", 0, 0});
  } catch (...) {
    return Public(Error{ErrorCode::kInternal, describe_exception(), "", 0, 0});
  }
}

}  // namespace glim::v0
