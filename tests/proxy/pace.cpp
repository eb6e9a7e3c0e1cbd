// A paced link, told when puts are taken. Usage: pace FS_PER_BYTE; each line of input is "NOW_NS BYTES", each line of output
// when that put leaves.
#include <cstdio>
#include <cstdlib>

#include "proxy/pace.h"

int main(int, char** arguments) {
  mk::PacedLink link(std::strtoull(arguments[1], nullptr, 10));
  unsigned long long now_ns, bytes;
  while (std::scanf("%llu %llu", &now_ns, &bytes) == 2) std::printf("%llu\n", link.reserve(now_ns, bytes));
}
