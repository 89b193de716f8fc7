#include "cli/input/question_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/input/command_path.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"

namespace acplan::cli {

using graph::JsonField;

namespace {

constexpr std::string_view kQuestion = "--question";
constexpr std::string_view kFormat = "acplan.question";
constexpr int64_t kVersion = 1;
// Types of options whose values are texts.
constexpr std::string_view kNamesType = "NAMES";
constexpr std::string_view kPattern = "PATTERN";

std::string KeyOf(const CLI::Option& option) {
  std::string key = option.get_lnames().empty() ? option.get_name(true)
                                                : option.get_lnames().front();
  std::ranges::transform(key, key.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::tolower(c));
  });
  return key;
}

bool IsSwitch(const CLI::Option& option) {
  return option.get_items_expected_max() == 0;
}

// Returns the options of a command that a question may have, by key.
std::map<std::string, const CLI::Option*> OptionsByKey(const CLI::App& app) {
  std::map<std::string, const CLI::Option*> options;
  for (const CLI::Option* option : app.get_options()) {
    const std::string key = KeyOf(*option);
    if (key != "help" && key != "question") options[key] = option;
  }
  return options;
}

std::string ScalarText(const JsonField& field) {
  const nlohmann::json& value = field.json();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_unsigned()) {
    return fmt::format("{}", value.get<uint64_t>());
  }
  if (value.is_number_integer()) return fmt::format("{}", value.get<int64_t>());
  if (value.is_number()) return fmt::format("{}", value.get<double>());
  field.Fail("a number or a text");
}

// Returns a name that can stand in an argument, where a list of names is "a,b"
// or "@FILE".
std::string NameOf(const JsonField& field) {
  std::string name = field.String();
  if (name.starts_with('@') || name.find_first_of(",\n#") != name.npos) {
    field.Fail("a name without a comma, '#', or '@' at its beginning");
  }
  return name;
}

std::vector<std::string> ValuesOf(const CLI::Option& option,
                                  const JsonField& field) {
  const std::string type = option.get_type_name();
  const bool is_text = type == kNamesType || type == kPattern;
  if (!field.json().is_array()) {
    return {is_text ? field.String() : ScalarText(field)};
  }
  if (option.get_expected_max() <= 1) field.Fail("a number or a text");
  std::vector<std::string> values;
  for (const JsonField& element : field.Elements()) {
    values.push_back(type == kNamesType ? NameOf(element)
                     : type == kPattern ? element.String()
                                        : ScalarText(element));
  }
  return values;
}

// Adds a key and its value to the arguments; positional ones follow the flags.
void AddOption(const CLI::Option& option, const JsonField& field,
               QuestionFile& question, std::vector<std::string>& positional) {
  if (option.get_lnames().empty()) {
    std::ranges::move(ValuesOf(option, field), std::back_inserter(positional));
    return;
  }
  const std::string flag = "--" + option.get_lnames().front();
  question.flags.insert(flag);
  if (IsSwitch(option)) {
    if (field.Bool()) question.arguments.push_back(flag);
    return;
  }
  for (const std::string& value : ValuesOf(option, field)) {
    question.arguments.push_back(flag + "=" + value);
  }
}

[[noreturn]] void RefuseKey(
    const QuestionFile& question, const std::string& key,
    const std::map<std::string, const CLI::Option*>& options) {
  std::vector<std::string> keys;
  for (const auto& [name, option] : options) keys.push_back(name);
  const std::vector<std::string> near = graph::NearestNames(key, keys, 1);
  throw InputError(fmt::format(
      "{}: unknown key {}{}", question.name, graph::Quoted(key, 100),
      near.empty() ? "" : fmt::format("; did you mean {}?", near.front())));
}

QuestionFile ParseQuestion(const CLI::App& command, std::string_view text,
                           std::string name) {
  QuestionFile question{.name = std::move(name), .arguments = {}, .flags = {}};
  const nlohmann::json document = graph::ParseJson(text, question.name);
  const JsonField root(document, question.name);
  graph::RequireFormat(root, kFormat, kVersion);
  const std::map<std::string, const CLI::Option*> options =
      OptionsByKey(command);
  std::vector<std::string> positional;
  // In the order of the command's options, since arguments have an order.
  for (const auto& [key, value] : document.items()) {
    if (key == "format" || key == "version") continue;
    if (!options.contains(key)) RefuseKey(question, key, options);
  }
  for (const CLI::Option* option : command.get_options()) {
    const std::string key = KeyOf(*option);
    if (options.contains(key) && root.Has(key)) {
      AddOption(*option, root.Get(key), question, positional);
    }
  }
  if (!positional.empty()) {
    question.arguments.push_back("--");
    std::ranges::move(positional, std::back_inserter(question.arguments));
  }
  return question;
}

// Returns the value of --question, or nullopt.
std::optional<std::string> QuestionArgument(
    const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == kQuestion && i + 1 < arguments.size()) {
      return arguments[i + 1];
    }
    if (arguments[i].starts_with("--question=")) {
      return arguments[i].substr(kQuestion.size() + 1);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string QuestionFile::NamingKeys(const std::string& complaint) const {
  const size_t end = complaint.find(':');
  if (end == std::string::npos || !flags.contains(complaint.substr(0, end))) {
    return complaint;
  }
  std::string key = complaint.substr(2, end - 2);
  std::ranges::replace(key, '-', '_');
  return name + ": " + key + complaint.substr(end);
}

void AddQuestion(CLI::App& command) {
  command
      .add_option("--question",
                  "also read arguments from a JSON object; -: standard input")
      ->type_name("FILE");
}

std::optional<QuestionFile> FindQuestion(
    const CLI::App& program, const std::vector<std::string>& arguments) {
  const std::optional<std::string> path = QuestionArgument(arguments);
  if (!path) return std::nullopt;
  if (path->empty()) {
    throw InputError("--question: expected a value, found an empty one");
  }
  const CLI::App& command = NamedApp(program, arguments);
  if (!command.get_subcommands({}).empty()) return std::nullopt;
  if (*path == "-") {
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    return ParseQuestion(command, text, CommandPath(command));
  }
  return ParseQuestion(command, graph::ReadJsonText(*path),
                       graph::OneLine(*path));
}

}  // namespace acplan::cli
