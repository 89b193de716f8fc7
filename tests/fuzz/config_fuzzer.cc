// Requires that every input either is refused with an InputError of one line that names the
// file, or is a configuration that every trainer's reader reads, or refuses likewise, in
// every format.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/input_error.h"
#include "problems/trainers/config.h"
#include "problems/trainers/trainer.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"

namespace {

using namespace acplan::problems;

constexpr std::array kFormats = {ConfigFormat::kYaml, ConfigFormat::kToml,
                                 ConfigFormat::kJson, ConfigFormat::kPython,
                                 ConfigFormat::kFlags};

const ConfigNames& Names() {
  static const ConfigNames names{
      .blocks = {"layers.0", "layers.1"},
      .operators = {"aten.add.Tensor", "aten.mm.default", "aten.topk.default"},
      .classes = {"Block", "Model"},
      .block_classes = {"Block"},
      .modules = {"layers.0", "layers.1"}};
  return names;
}

void Read(const Config& config) {
  for (const Trainer& trainer : Trainers()) {
    trainer.is_like(config);
    try {
      const TrainerPolicy policy = trainer.read(config, Names()).policy;
      Require(policy.blocks.period >= 1, "a period");
    } catch (const acplan::InputError& error) {
      CheckMessage(error, "fuzz: ");
    }
  }
}

}  // namespace

std::string ValidInput(unsigned seed) {
  const std::vector<Trainer> trainers = Trainers();
  const Trainer& trainer = trainers[seed % trainers.size()];
  TrainerPolicy policy;
  if (seed % 3 != 0) {
    policy.blocks.kind = trainer.language.blocks.front();
    policy.blocks.classes = {"Block"};
  }
  return trainer.write(policy, Names());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const ConfigFormat format : kFormats) {
    for (const char* function : {"", "make"}) {
      const bool is_python = format == ConfigFormat::kPython;
      if (!is_python && *function != 0) continue;
      try {
        Read(Config(text, "fuzz", format, function));
      } catch (const acplan::InputError& error) {
        CheckMessage(error, "fuzz: ");
      }
    }
  }
  return 0;
}
