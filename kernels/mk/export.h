// The list of fields that declared a struct, once more: now as a table of names, offsets and sizes for Python (CPU only).
#pragma once
#include <type_traits>

#include "layout.h"

namespace mk {

struct FieldInfo {
  const char* name;
  const char* type;  // NumPy's name of one element
  u64 offset, count;
};

// Every translation unit adds what it declares; mk_layout() prints the whole list.
struct Exported {
  const char* name;
  u64 size;  // of a struct; 0 for a list of names
  const FieldInfo* fields;
  u64 field_count;
  const Exported* next;

  Exported(const char* name_, u64 size_, const FieldInfo* fields_, u64 count)
      : name(name_), size(size_), fields(fields_), field_count(count), next(first()) {
    first() = this;
  }
  static const Exported*& first();
};

template <class T> constexpr const char* numpy_type() {
  if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 8 ? "f8" : "f4";
  else if constexpr (std::is_signed_v<T>) return sizeof(T) == 8 ? "i8" : "i4";
  else return sizeof(T) == 8 ? "u8" : "u4";
}

}  // namespace mk

#define MK_EXPORT_SCALAR(type, name) {#name, mk::numpy_type<type>(), offsetof(MkSelf, name), 1},
#define MK_EXPORT_ARRAY(type, name, count) {#name, mk::numpy_type<type>(), offsetof(MkSelf, name), u64(count)},
#define MK_EXPORT_STRUCT(Name, FIELDS)                                                                  \
  namespace {                                                                                           \
  namespace exported_##Name {                                                                           \
  using namespace mk;                                                                                   \
  using MkSelf = mk::Name;                                                                              \
  const FieldInfo fields[] = {FIELDS(MK_EXPORT_SCALAR, MK_EXPORT_ARRAY)};                               \
  const Exported entry{#Name, sizeof(MkSelf), fields, sizeof(fields) / sizeof(FieldInfo)};              \
  }                                                                                                     \
  }

// A list of names; its order gives their numbers.
#define MK_EXPORT_NAME(name) {#name, "", 0, 0},
#define MK_EXPORT_NAMES(Name, LIST)                                                    \
  namespace {                                                                          \
  namespace exported_##Name {                                                          \
  const mk::FieldInfo fields[] = {LIST(MK_EXPORT_NAME)};                               \
  const mk::Exported entry{#Name, 0, fields, sizeof(fields) / sizeof(mk::FieldInfo)};  \
  }                                                                                    \
  }
