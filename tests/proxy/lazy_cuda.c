// A CUDA driver with no GPU: copies and events of a stream are carried out one at a time and late, whenever somebody asks
// whether an event has come. Which stream goes on is random. Who sets a flag too early shows the data before the copy.
// Needs a current context where CUDA does. LAZY_CUDA_BREAKS names a function that fails.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kOps = 4096, kStreams = 64, kNotReady = 600, kInvalidContext = 201, kIllegalAddress = 700 };
typedef enum { from_gpu = 1, to_gpu = 2, set = 4, record = 8, wait = 16 } Kind;
typedef struct { uint64_t wanted, reached; } Event;
typedef struct { Kind kind; void* to; const void* from; size_t bytes; Event* event; uint64_t value; } Op;
typedef struct { Op ops[kOps]; unsigned first, end; } Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Stream* streams[kStreams];
static unsigned stream_count, random_state = 1, held, copies[to_gpu + 1];
static _Thread_local void* current;
static void* const context = (void*)42;

#define LOCKED(...) pthread_mutex_lock(&lock); __VA_ARGS__; pthread_mutex_unlock(&lock)

// For tests: operations of these kinds stay where they are, and all behind them, until they are held no more.
void lazy_cuda_hold(unsigned kinds) { LOCKED(held = kinds); }
// How many copies of one kind were asked for.
unsigned lazy_cuda_copies(unsigned kind) {
  LOCKED(const unsigned count = copies[kind]);
  return count;
}

static void go_on(Stream* s, unsigned held_now) {
  if (s->first == s->end) return;
  Op* op = &s->ops[s->first % kOps];
  if (op->kind & held_now) return;
  if (op->kind == wait && op->event->reached < op->value) return;
  if (op->kind & (from_gpu | to_gpu)) memcpy(op->to, op->from, op->bytes);
  if (op->kind == set) __atomic_store_n((uint64_t*)op->to, op->value, __ATOMIC_RELEASE);
  if (op->kind == record) op->event->reached = op->value;
  ++s->first;
}

static int refusal(const char* name) {
  const char* broken = getenv("LAZY_CUDA_BREAKS");
  if (broken && strcmp(broken, name) == 0) return kIllegalAddress;
  return current == context ? 0 : kInvalidContext;
}

static int push(const char* name, Stream* s, Op op) {
  const int code = refusal(name);
  if (code) return code;
  LOCKED(s->ops[s->end++ % kOps] = op; if (op.kind <= to_gpu) ++copies[op.kind]);
  return 0;
}

int cuCtxPushCurrent_v2(void* c) { return c == context ? (current = c, 0) : kInvalidContext; }
int cuCtxPopCurrent_v2(void** c) { return *c = current, current = NULL, 0; }
int cuCtxSetCurrent(void* c) { return cuCtxPushCurrent_v2(c); }
int cuStreamCreate(void** s, unsigned flags) {
  (void)flags;
  LOCKED(streams[stream_count++] = *s = calloc(1, sizeof(Stream)));
  return refusal("cuStreamCreate");
}
int cuStreamSynchronize(void* s) {
  LOCKED(while (((Stream*)s)->first != ((Stream*)s)->end) for (unsigned i = 0; i < stream_count; ++i) go_on(streams[i], 0));
  return refusal("cuStreamSynchronize");
}
// What a stream still has to do is done by nobody any more.
int cuStreamDestroy_v2(void* s) {
  LOCKED(unsigned i = 0; while (streams[i] != s) ++i; streams[i] = streams[--stream_count]; free(s));
  return refusal("cuStreamDestroy");
}
int cuEventCreate(void** e, unsigned flags) { return (void)flags, *e = calloc(1, sizeof(Event)), refusal("cuEventCreate"); }
int cuEventDestroy_v2(void* e) { return (void)e, refusal("cuEventDestroy"); }  // a stream may still wait for it
int cuEventRecord(void* e, void* s) {
  return push("cuEventRecord", s, (Op){.kind = record, .event = e, .value = ++((Event*)e)->wanted});
}
int cuEventQuery(void* e) {
  LOCKED(const unsigned random = random_state = random_state * 1103515245u + 12345u;
         go_on(streams[random / 65536u % stream_count], held);
         const int ready = ((Event*)e)->reached >= ((Event*)e)->wanted);
  return ready ? refusal("cuEventQuery") : kNotReady;
}
int cuStreamWaitEvent(void* s, void* e, unsigned flags) {
  (void)flags;
  return push("cuStreamWaitEvent", s, (Op){.kind = wait, .event = e, .value = ((Event*)e)->wanted});
}
int cuStreamWriteValue64_v2(void* s, uint64_t word, uint64_t value, unsigned flags) {
  (void)flags;
  return push("cuStreamWriteValue64", s, (Op){.kind = set, .to = (void*)word, .value = value});
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* s) {
  return push("cuMemcpyDtoHAsync", s, (Op){.kind = from_gpu, .to = to, .from = (void*)from, .bytes = bytes});
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* s) {
  return push("cuMemcpyHtoDAsync", s, (Op){.kind = to_gpu, .to = (void*)to, .from = from, .bytes = bytes});
}
