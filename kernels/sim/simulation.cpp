#include "simulation.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "../mk/command_queue.h"
#include "../mk/roles.h"
#include "../mk/export.h"

namespace mk {

namespace {

#ifdef MK_TSAN
constexpr size_t kStackBytes = 256 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif
constexpr size_t kPage = 4096;

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Address space only; pages become real when they are touched, if they may be.
u8* reserve(size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<u8*>(memory);
}

u64 mix(u64 x) {  // splitmix64's finaliser
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

BlockTask& task_of(Block& block) { return *static_cast<BlockTask*>(block.context); }

const char* name_of(const char* list, u32 number) {
  for (const Exported* e = Exported::first(); e; e = e->next)
    if (e->size == 0 && std::string(e->name) == list && number < e->field_count) return e->fields[number].name;
  return "?";
}

std::string epoch_value(u64 word) { return std::to_string(word >> 32) + ":" + std::to_string(u32(word)); }

}  // namespace

Simulation::Simulation(const SimConfig& config, const u8* params, size_t params_bytes) : config_(config) {
  payload = config.payload != 0;
  scheduler_.configure(config.stress != 0, config.seed);
  const LaunchParams& first = *reinterpret_cast<const LaunchParams*>(params);
  const size_t stride = pages(config.heap_bytes), count = size_t(first.ranks), blocks = count * size_t(first.blocks);
  arena_bytes_ = stride * count;
  arena_ = reserve(arena_bytes_, payload ? PROT_READ | PROT_WRITE : PROT_NONE);
  stacks_bytes_ = (blocks + 2 * count) * kStackBytes;
  stacks_ = reserve(stacks_bytes_, PROT_READ | PROT_WRITE);
  scratch_bytes_ = pages(blocks * sizeof(Scratch));
  scratch_ = reinterpret_cast<Scratch*>(reserve(scratch_bytes_, PROT_READ | PROT_WRITE));
  for (size_t r = 0; r < count; ++r) {
    Rank& rank = ranks_.emplace_back();
    rank.index = i32(r);
    rank.heap = arena_ + r * stride;
    rank.network_region = rank.heap + config.network_offset;
    mprotect(rank.heap, pages(config.kept_end), PROT_READ | PROT_WRITE);
    const size_t first_page = config.network_offset / kPage * kPage;
    mprotect(rank.heap + first_page, pages(config.network_offset + config.network_kept - first_page), PROT_READ | PROT_WRITE);
  }
  for (Rank& rank : ranks_) prepare(rank, params + size_t(rank.index) * params_bytes, params_bytes);
}

Simulation::~Simulation() {
  munmap(arena_, arena_bytes_);
  munmap(stacks_, stacks_bytes_);
  munmap(scratch_, scratch_bytes_);
}

void Simulation::prepare(Rank& rank, const u8* params, size_t params_bytes) {
  rank.params.assign(params, params + params_bytes);
  LaunchParams& launch = rank.launch();
  const i32 first = launch.node * launch.local_ranks;
  for (i32 i = 0; i < launch.local_ranks; ++i) launch.heap[i] = reinterpret_cast<u64>(ranks_[size_t(first + i)].heap);
  rank.ring_slots.assign(size_t(launch.rings) * size_t(launch.ring_depth) * 2, 0);
  rank.ring_tails.assign(size_t(launch.rings), 0);
  launch.ring_slots = reinterpret_cast<u64>(rank.ring_slots.data());
  launch.ring_tails = reinterpret_cast<u64>(rank.ring_tails.data());
  launch.abort_record = reinterpret_cast<u64>(&rank.abort);
  launch.network = reinterpret_cast<u64>(rank.network_region);
  rank.words.resize(config_.control_end / sizeof(u64));
  rank.network_words.resize(config_.network_control / sizeof(u64));
  // All that the fibers fill is allocated here: they are not ordered, so one must not free what another allocated.
  rank.begins.reserve(size_t(config_.launches) + 1);
  rank.ends.reserve(size_t(config_.launches));
  rank.begins.push_back(0);
  for (i32 b = 0; b < launch.blocks; ++b) {
    BlockTask& task = *rank.blocks.emplace_back(std::make_unique<BlockTask>());
    task.simulation = this;
    task.rank = &rank;
    task.time = picos(config_.kernel_start_ns);
    task.block = {b, launch.blocks, this, &task, scratch_ + rank.index * launch.blocks + b};
    add_task(task, size_t(rank.index * launch.blocks + b), run_block, &task);
    ++unfinished_;
  }
  if (launch.nodes == 1) return;
  const size_t extra = ranks_.size() * size_t(launch.blocks) + 2 * size_t(rank.index);
  rank.proxy.simulation = this;
  rank.proxy.rank = &rank;
  rank.proxy.proxy = make_proxy(*this, rank);
  add_task(rank.proxy, extra, run_proxy, &rank.proxy);
  rank.network.simulation = this;
  rank.network.rank = &rank;
  add_task(rank.network, extra + 1, run_network, &rank.network);
}

void Simulation::add_task(Task& task, size_t stack, void (*entry)(void*), void* argument) {
  task.fiber.create(stacks_ + stack * kStackBytes, kStackBytes, entry, argument);
  scheduler_.add(task);
}

void Simulation::run(SimResult& result) {
  for (Rank& rank : ranks_) ordered_before(&rank);
  scheduler_.run();
  if (!failed_ && unfinished_ > 0) describe_deadlock();
  result = {};
  result.events = scheduler_.events();
  result.status = u32(status_);
  for (Rank& rank : ranks_) {
    ordered_after(&rank);
    if (!rank.proxy.proxy) continue;
    ordered_after(&rank.proxy);
    result.payload_bytes += proxy_payload_bytes(*rank.proxy.proxy);
    result.commands += proxy_commands(*rank.proxy.proxy);
  }
}

Picoseconds Simulation::latency(i32 launch) const {
  Picoseconds longest = 0;
  for (const Rank& rank : ranks_)
    if (size_t(launch) < rank.ends.size())
      longest = std::max(longest, rank.ends[size_t(launch)] - rank.begins[size_t(launch)]);
  return longest;
}

Rank& Simulation::rail_peer(const Rank& of, i32 node) {
  const LaunchParams& launch = *reinterpret_cast<const LaunchParams*>(of.params.data());
  return ranks_[size_t(node * launch.local_ranks + launch.local_rank)];
}

void Simulation::fail(SimStatus status, const std::string& what) {
  if (failed_) return;
  failed_ = true;
  status_ = status;
  report_ = what;
  scheduler_.stop();
}

// Blocks

void Simulation::run_block(void* argument) {
  BlockTask& task = *static_cast<BlockTask*>(argument);
  Simulation& self = *task.simulation;
  Rank& rank = *task.rank;
  for (i32 launch = 0; launch < self.config_.launches && !self.failed_; ++launch) {
    self.scheduler_.arrive();
    ordered_after(&rank);
    mk_kernel(task.block, rank.params.data());
    ordered_before(&rank);
    self.scheduler_.arrive();
    if (++rank.finished == rank.launch().blocks) self.end_launch(rank, task.time);
    else if (launch + 1 < self.config_.launches) self.scheduler_.park(rank.next_launch);
  }
  --self.unfinished_;
  self.scheduler_.finish();
}

void Simulation::end_launch(Rank& rank, Picoseconds now) {
  rank.finished = 0;
  rank.ends.push_back(now);
  rank.begins.push_back(now);
  if (i32(rank.ends.size()) == config_.launches) return;
  rank.launch().epoch += 1;
  const Picoseconds start = now + picos(config_.kernel_start_ns);
  scheduler_.wake(rank.next_launch, start);
  scheduler_.current().time = start;
}

void Simulation::describe_deadlock() {
  constexpr int kMost = 12;
  int named = 0;
  std::string list;
  i64 waiting = 0;
  for (Rank& rank : ranks_)
    for (auto& task : rank.blocks) {
      if (!task->parked || !task->awaited.word) continue;
      ++waiting;
      if (++named > kMost) continue;
      const Awaited& a = task->awaited;
      const char* flag = a.flag == kQueueFullFlag ? "a free slot in command ring" : name_of("flags", a.flag);
      list += "\n  rank " + std::to_string(rank.index) + " block " + std::to_string(task->block.index) + " role " +
              name_of("roles", a.role) + " waits for " + flag + "[" + std::to_string(a.index) +
              "]: expected " + epoch_value(a.expected) + ", seen " + epoch_value(a.seen);
    }
  status_ = SimStatus::deadlock;
  failed_ = true;
  report_ = "deadlock: " + std::to_string(waiting) + " blocks wait and nothing can run" + list;
  if (named > kMost) report_ += "\n  and " + std::to_string(waiting - kMost) + " more";
}

// Words that others can see

Rank& Simulation::owner(const void* address) {
  const size_t stride = pages(config_.heap_bytes);
  return ranks_[size_t(static_cast<const u8*>(address) - arena_) / stride];
}

// Nothing for words outside the heaps: the command rings.
Word* Simulation::word_of(const u64* address, Rank*& where) {
  const u8* byte = reinterpret_cast<const u8*>(address);
  if (byte < arena_ || byte >= arena_ + arena_bytes_) return nullptr;
  where = &owner(address);
  if (byte >= where->network_region) return &where->network_words[size_t(byte - where->network_region) / sizeof(u64)];
  return &where->words[size_t(byte - where->heap) / sizeof(u64)];
}

u64 Simulation::now_ns(Block& block) { return task_of(block).time / Picoseconds(kPicosPerNano); }

void Simulation::before_access(Block& block, const u64* words, i32 count, Scope scope, bool writes) {
  BlockTask& task = task_of(block);
  // The compute role claims ahead and signals behind its main loop; what that costs is in tile_overhead_ns.
  if (block.role != u32(Role::compute))
    task.time += picos(writes ? (scope == Scope::gpu ? config_.flag_gpu_ns : config_.flag_system_ns) : config_.poll_ns);
  scheduler_.arrive();
  if (task.time > picos(double(config_.time_limit_ns)))
    fail(SimStatus::time_limit, "the launch did not end within " + std::to_string(config_.time_limit_ns / 1000) +
                                    " us of simulated time; raise the deadline if that is too short");
  for (i32 i = 0; i < count; ++i) check(task, words + i, scope, writes);
}

void Simulation::check(BlockTask& task, const u64* address, Scope scope, bool writes) {
  const i32 self = task.rank->index;
  Rank* where = nullptr;
  const Word* word = word_of(address, where);
  if (scope == Scope::system) {
    if (word && !writes && word->writer >= 0 && word->writer != self && word->scope == Scope::gpu)
      fail(SimStatus::protocol_error, "rank " + std::to_string(self) + " reads a word that rank " +
                                          std::to_string(word->writer) + " signalled at gpu scope");
    return;
  }
  const std::string who = "rank " + std::to_string(self) + " block " + std::to_string(task.block.index) + " role " +
                          name_of("roles", task.block.role);
  if (!word) fail(SimStatus::protocol_error, who + " uses gpu scope on a word that the host proxy shares");
  else if (where->index != self)
    fail(SimStatus::protocol_error, who + " uses gpu scope on a word of rank " + std::to_string(where->index));
  else if (!writes && word->writer != Word::kNobody && word->writer != self)
    fail(SimStatus::protocol_error, who + " reads at gpu scope what " +
                                        (word->writer == Word::kHost ? std::string("the network") : "rank " + std::to_string(word->writer)) +
                                        " signalled");
}

void Simulation::after_write(Block& block, const u64* address, Scope scope) {
  BlockTask& task = task_of(block);
  // A writer that was charged for its release has already waited for it; the compute role goes on meanwhile.
  const double flag_ns = scope == Scope::gpu ? config_.flag_gpu_ns : config_.flag_system_ns;
  const Picoseconds visible = task.time + (block.role == u32(Role::compute) ? picos(flag_ns) : 0);
  Rank* where = nullptr;
  if (Word* word = word_of(address, where)) {
    word->writer = task.rank->index;
    word->scope = scope;
    scheduler_.wake(word->waiters, visible);
  } else {
    scheduler_.wake(task.rank->commands, visible);
  }
}

void Simulation::written_by_host(Rank& rank, u64 index, Picoseconds now) {
  Word& word = rank.network_words[index];
  word.writer = Word::kHost;
  word.scope = Scope::system;
  scheduler_.wake(word.waiters, now + picos(config_.flag_system_ns));
}

bool Simulation::idle(Block& block, const Awaited& awaited, u64&) {
  if (failed_) return false;
  BlockTask& task = task_of(block);
  Rank* where = nullptr;
  Word* word = word_of(awaited.word, where);
  task.awaited = awaited;
  scheduler_.park(word ? word->waiters : task.rank->ring_space);
  task.awaited.word = nullptr;
  return !failed_;
}

void Simulation::rest(Block& block) {
  constexpr double kRestNs = 1000;
  task_of(block).time += picos(kRestNs);
  scheduler_.arrive();
}

// Costs

double Simulation::spread(u64 a, u64 b) const {
  const u64 random = mix(mix(mix(config_.seed) ^ a) ^ b);
  const double unit = double(random >> 11) / double(1ull << 53);
  return 1.0 + config_.jitter * (2.0 * unit - 1.0);
}

void Simulation::charge_gemm(Block& block, i32 k, i32 task) {
  BlockTask& self = task_of(block);
  const double flops = 2.0 * double(kTileElements) * k;
  self.time += picos((config_.tile_overhead_ns + flops / config_.gemm_flops) * spread(u64(self.rank->index), u64(task)));
}

void Simulation::charge_attention(Block& block, i32 keys, i32 d, i32 task) {
  BlockTask& self = task_of(block);
  const double flops = 4.0 * kTileM * keys * d;
  self.time += picos(flops / config_.gemm_flops * spread(u64(self.rank->index), u64(task)));
}

void Simulation::charge_role_switch(Block& block) { task_of(block).time += picos(config_.role_switch_ns / 2); }

// The first word is a look; the others follow at the rate of a copy.
void Simulation::charge_pass(Block& block, i64 bytes) {
  task_of(block).time += picos(config_.poll_ns + double(bytes) / config_.copy_bytes);
}

void Simulation::charge_move(Block& block, const Traffic& traffic) {
  BlockTask& task = task_of(block);
  scheduler_.arrive();
  Rank& self = *task.rank;
  const Picoseconds now = task.time;
  const double bytes = double(traffic.bytes);
  const double copied = bytes * std::max(traffic.sources, traffic.destinations);
  const u64 which = u64(block.index) << 32 | task.moves++;
  // An addition leaves its block as the store of a tile does, in its tile_overhead_ns.
  Picoseconds done = now;
  if (!traffic.adds) done += picos(copied / config_.copy_bytes * spread(u64(self.index) + (1ull << 40), which));
  bool remote = false;
  const auto pass = [&](Link& link, double rate) { done = std::max(done, link.reserve(now, bytes, rate)); };
  const auto cross = [&](Rank& from, Rank& to) {
    if (&from == &to) return;
    remote = true;
    pass(from.nvlink_out, config_.nvlink_bytes);
    pass(to.nvlink_in, config_.nvlink_bytes);
  };
  for (i32 i = 0; i < traffic.sources; ++i) {
    Rank& from = owner(traffic.source[i]);
    pass(from.hbm, config_.hbm_bytes);
    cross(from, self);
  }
  for (i32 i = 0; i < traffic.destinations; ++i) {
    Rank& to = owner(traffic.destination[i]);
    cross(self, to);
    // An addition reads what is there and writes it.
    pass(to.hbm, traffic.adds ? config_.hbm_bytes / 2 : config_.hbm_bytes);
  }
  task.time = done + (remote ? picos(config_.nvlink_latency_ns) : 0);
  scheduler_.arrive();
}

// Proxy

void Simulation::run_proxy(void* argument) {
  ProxyTask& task = *static_cast<ProxyTask*>(argument);
  Simulation& self = *task.simulation;
  for (;;) {
    const u64 before = proxy_commands(*task.proxy);
    const bool moved = step_proxy(*task.proxy);
    const u64 taken = proxy_commands(*task.proxy) - before;
    if (*proxy_error(*task.proxy)) self.fail(SimStatus::protocol_error, proxy_error(*task.proxy));
    if (taken) self.scheduler_.wake(task.rank->ring_space, task.time + picos(self.config_.flag_system_ns));
    task.time += picos(double(taken) * self.config_.proxy_command_ns);
    ordered_before(&task);  // for run(), which reads its counts at the end
    if (moved) self.scheduler_.arrive();
    else self.scheduler_.park(task.rank->commands);
  }
}

}  // namespace mk
