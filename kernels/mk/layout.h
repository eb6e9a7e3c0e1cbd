// A struct that crosses the language border is declared once, as a list of fields; export.h turns the same list into
// the table of names, offsets and sizes that Python builds its own view from.
#pragma once
#include "types.h"

#define MK_SCALAR(type, name) type name;
#define MK_ARRAY(type, name, count) type name[count];
#define MK_STRUCT(Name, FIELDS) \
  struct Name {                 \
    FIELDS(MK_SCALAR, MK_ARRAY) \
  };
