// Whatever the bytes: a trace that is accepted is the same after it was written
// and read again, its indices are sound, and so is its profile where it has one;
// everything else is an InputError of one line. Built with -fsanitize=fuzzer, or with replay_main.cc.

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/input_error.h"
#include "graph/profile/profile.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/trace.h"
#include "tests/fuzz/checks.h"

namespace {

using namespace acplan::graph;

void CheckLives(const Trace& trace) {
  size_t born = 0;
  for (const TraceStorage& storage : trace.storages) {
    Require(storage.born <= storage.freed, "birth before death");
    if (storage.born != -1) ++born;
  }
  for (size_t k = 0; k < trace.operators.size(); ++k) {
    const TraceOperator& op = trace.operators[k];
    born -= op.creates.size();
    for (int32_t i : op.creates)
      Require(trace.storages.at(i).born == static_cast<int32_t>(k),
              "creates what is born in it");
    for (int32_t i : op.reads)
      Require(trace.storages.at(i).freed >= static_cast<int32_t>(k),
              "reads what lives");
    if (op.call != -1)
      Require(trace.calls.at(op.call).end > static_cast<int32_t>(k),
              "runs in its call");
  }
  Require(born == 0, "an operator for each birth");
}

// A profile that its reader takes, of a trace that has one.
void CheckProfile(const Trace& trace) {
  try {
    const Profile profile = Aggregate(trace);
    Require(ParseProfile(ProfileToJson(profile), "fuzz.json") == profile,
            "the same profile after writing and reading");
  } catch (const acplan::InputError& error) {
    const std::string_view message = error.what();
    Require(!message.starts_with("fuzz.json"), "a profile that is read");
    Require(message.find('\n') == std::string_view::npos,
            "a message of one line");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Trace trace = ParseTrace(text, "fuzz.json");
    CheckLives(trace);
    CheckProfile(trace);
    Require(ParseTrace(ToJson(trace), "fuzz.json") == trace,
            "the same trace after writing and reading");
  } catch (const acplan::InputError& error) {
    CheckMessage(error);
  }
  return 0;
}
