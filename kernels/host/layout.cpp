// mk_layout(): every exported struct and list of names, as JSON.
#include <string>

#include "../mk/controller.h"
#include "../mk/export.h"
#include "../mk/roles.h"

namespace mk {

const Exported*& Exported::first() {
  static const Exported* head = nullptr;
  return head;
}

namespace {

std::string quoted(const char* text) { return '"' + std::string(text) + '"'; }

std::string fields_of(const Exported& entry) {
  std::string json;
  for (u64 i = 0; i < entry.field_count; ++i) {
    const FieldInfo& f = entry.fields[i];
    if (i) json += ',';
    if (entry.size == 0) {
      json += quoted(f.name);
      continue;
    }
    json += '[' + quoted(f.name) + ',' + quoted(f.type) + ',' + std::to_string(f.offset) + ',' + std::to_string(f.count) + ']';
  }
  return '[' + json + ']';
}

std::string layout() {
  std::string structs, names;
  for (const Exported* e = Exported::first(); e; e = e->next) {
    std::string& list = e->size ? structs : names;
    if (!list.empty()) list += ',';
    if (e->size) list += quoted(e->name) + ":{\"size\":" + std::to_string(e->size) + ",\"fields\":" + fields_of(*e) + '}';
    else list += quoted(e->name) + ':' + fields_of(*e);
  }
  return "{\"structs\":{" + structs + "},\"names\":{" + names + "},\"constants\":{\"tile_m\":" + std::to_string(kTileM) +
         ",\"tile_n\":" + std::to_string(kTileN) + ",\"max_node_ranks\":" + std::to_string(kMaxNodeRanks) +
         ",\"max_nodes\":" + std::to_string(kMaxNodes) + "}}";
}

}  // namespace
}  // namespace mk

#define MK_ROLE_NAMES(F) F(none) F(compute) F(local) F(send) F(receive)
MK_EXPORT_NAMES(roles, MK_ROLE_NAMES)
MK_EXPORT_STRUCT(AbortRecord, MK_ABORT_RECORD)
MK_EXPORT_STRUCT(TraceEvent, MK_TRACE_EVENT)
MK_EXPORT_STRUCT(HistoryRow, MK_HISTORY_ROW)

extern "C" const char* mk_layout() {
  static const std::string json = mk::layout();
  return json.c_str();
}
