// Variables that are declared without a value. Behind the declaration of `x` stands an object that fills `x`
// with what marks that, and has it watched for as long as that is in scope.
#pragma once

#include "machine/runtime.h"
#include "simdgroup_matrix.h"

namespace emulator {

template <typename T>
constexpr bool is_matrix = false;
template <typename T, int C, int R>
constexpr bool is_matrix<metal::simdgroup_matrix<T, C, R>> = true;  // which fills itself
template <typename T>
constexpr bool is_vector = false;
template <typename T, int N>
constexpr bool is_vector<metal::vec<T, N>> = true;

template <typename T>
void fill_unset(T& variable) {
  if constexpr (std::is_array_v<T>) {
    for (auto& element : variable) fill_unset(element);
  } else if constexpr (is_vector<T>) {
    fill_unset(variable.data);
  } else if constexpr (is_floating<T>) {
    poison(&variable, element_of<T>);
  } else if constexpr (std::is_integral_v<T> && sizeof(T) >= sizeof kUnsetInteger) {
    variable = T(std::uint64_t{kUnsetInteger} << 32 | kUnsetInteger);
  } else if constexpr (!is_matrix<T>) {
    std::memset(static_cast<void*>(&variable), kUnsetByte, sizeof variable);
  }
}

template <typename T>
class Unset {
  using Element = std::remove_all_extents_t<T>;
  static constexpr bool kWatched = std::is_trivially_default_constructible_v<Element> || is_matrix<Element>;

 public:
  Unset(T& variable, const char* name) : variable_(&variable) {
    if constexpr (kWatched) {
      fill_unset(variable);
      note_unset(variable_, sizeof(T), sizeof(Element), name);
    }
  }
  ~Unset() {
    if constexpr (kWatched) forget_unset(variable_, sizeof(T));
  }
  Unset(const Unset&) = delete;
  Unset& operator=(const Unset&) = delete;

 private:
  const void* variable_;
};

}  // namespace emulator
