#include "cli/input/output_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/input/data_folder.h"
#include "cli/input/strategy_argument.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

namespace fs = std::filesystem;

constexpr char kMark[] = "output";

// The names of values, in the help of options, that stand for a file. An
// argument without such a name takes a file, too.
constexpr std::array<std::string_view, 4> kFileTypes = {"TEXT", "FILE", "JSON",
                                                        "CSV"};

bool IsOutput(CLI::Option& option) {
  try {
    option.get_validator(kMark);
    return true;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

bool TakesFile(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return std::ranges::find(kFileTypes, type) != kFileTypes.end() &&
         (type != "TEXT" || option.get_positional());
}

struct NamedFile {
  std::string flag;
  std::string path;
};

struct Files {
  std::vector<NamedFile> inputs;
  std::vector<NamedFile> outputs;
};

void AddInputs(const CLI::Option& option, const std::string& value,
               std::vector<NamedFile>& inputs) {
  if (value.starts_with('@')) {
    inputs.push_back({option.get_name(), value.substr(1)});
  }
  if (!TakesFile(option)) return;
  inputs.push_back({option.get_name(), value});
  inputs.push_back({option.get_name(), FileOfStrategy(value)});
}

Files FilesOf(CLI::App& app, const std::string& log) {
  Files files;
  for (CLI::Option* option : app.get_options({})) {
    if (option->get_name() == "--systems" && option->empty()) {
      files.inputs.push_back({"--systems", SystemsFile("").string()});
    }
    std::vector<std::string> values = option->results();
    if (IsOutput(*option) && !values.empty()) {
      // "-" is a stream.
      if (values.back() != "-") {
        files.outputs.push_back({option->get_name(), values.back()});
      }
      values.pop_back();
    }
    for (const std::string& value : values) {
      AddInputs(*option, value, files.inputs);
    }
  }
  if (!log.empty()) files.outputs.push_back({"--log", log});
  return files;
}

// Returns whether both names are one regular file, or would be once they are
// written.
bool AreOneFile(const std::string& a, const std::string& b) {
  std::error_code none;
  const bool has_a = fs::exists(a, none);
  if (has_a != fs::exists(b, none)) return false;
  if (has_a) return fs::is_regular_file(a, none) && fs::equivalent(a, b, none);
  const fs::path path_a = fs::weakly_canonical(fs::absolute(a, none), none);
  const fs::path path_b = fs::weakly_canonical(fs::absolute(b, none), none);
  return !path_a.empty() && path_a == path_b;
}

}  // namespace

void MarkAsOutput(CLI::Option* option) {
  option->check(
      CLI::Validator([](std::string&) { return std::string(); }, "", kMark));
}

CLI::Option* AddOutput(CLI::App& app, std::string& output,
                       const std::string& help) {
  CLI::Option* option =
      app.add_option("-o,--output", output, help)->type_name("FILE");
  MarkAsOutput(option);
  return option;
}

void CheckOutputs(CLI::App& app, const std::string& log) {
  const Files files = FilesOf(app, log);
  for (size_t i = 0; i < files.outputs.size(); ++i) {
    const auto& [flag, path] = files.outputs[i];
    if (flag != "--log") graph::CheckWritable(path);
    for (const NamedFile& input : files.inputs) {
      if (input.path.empty() || !AreOneFile(path, input.path)) continue;
      throw InputError(fmt::format(
          "{}: expected a file other than the input{}, found {}", flag,
          input.flag.starts_with("--") ? " of " + input.flag : "",
          graph::Quoted(path, 400)));
    }
    for (size_t j = 0; j < i; ++j) {
      if (!AreOneFile(path, files.outputs[j].path)) continue;
      throw InputError(
          fmt::format("{}: expected a file other than {}, found {}", flag,
                      files.outputs[j].flag, graph::Quoted(path, 400)));
    }
  }
}

}  // namespace acplan::cli
