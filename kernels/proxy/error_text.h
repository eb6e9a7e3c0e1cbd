// One line that says what went wrong; the first one stays. Of fixed size, since a proxy allocates nothing.
#pragma once
#include <cstdarg>
#include <cstdio>

#include "put.h"

namespace mk {

class ErrorText {
 public:
  const char* get() const { return text_[0] ? text_ : nullptr; }

  [[gnu::format(printf, 2, 3)]] void set(const char* format, ...) {
    if (text_[0]) return;
    va_list values;
    va_start(values, format);
    std::vsnprintf(text_, sizeof text_, format, values);
    va_end(values);
  }

  void set(const Put& put, const char* doing, const char* reason) {
    set("peer node %d: cannot %s a put of %llu bytes to offset %llu with flag %llu of epoch %llu: %s", put.peer, doing,
        put.bytes, put.destination_offset, put.flag_index, put.flag_value >> 32, reason);
  }

 private:
  char text_[320] = {};
};

}  // namespace mk
