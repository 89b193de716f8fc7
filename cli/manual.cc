#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/command.h"
#include "cli/input/command_path.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"

namespace acplan::cli {

namespace {

// Returns text as man(7) shows it: with escaped backslashes and hyphens, and no
// line that begins like a request.
std::string Plain(std::string_view text) {
  std::string plain;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) plain += "\\&";
    if (c == '\\') {
      plain += "\\e";
    } else if (c == '-') {
      plain += "\\-";
    } else {
      plain += c;
    }
    begins_line = c == '\n';
  }
  return plain;
}

// Returns the name of a page: "acplan", or "acplan-plan" for the command plan.
std::string PageName(const CLI::App& app) {
  std::string name = "acplan " + CommandPath(app);
  if (app.get_parent() == nullptr) name = app.get_name();
  std::ranges::replace(name, ' ', '-');
  return name;
}

std::string Upper(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return text;
}

// Returns the options and arguments that are shown; a group without a name is
// hidden.
std::vector<const CLI::Option*> ShownOptions(const CLI::App& app,
                                             bool positional) {
  std::vector<const CLI::Option*> options;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() == positional &&
        !option->get_group().empty()) {
      options.push_back(option);
    }
  }
  return options;
}

std::string Synopsis(const CLI::App& app, bool has_commands) {
  std::string line = has_commands ? " [\\fIOPTIONS\\fR] \\fICOMMAND\\fR ..."
                                  : " [\\fIOPTIONS\\fR]";
  for (const CLI::Option* option : ShownOptions(app, true)) {
    std::string name = "\\fI" + Plain(option->get_name(true)) + "\\fR";
    if (option->get_expected_max() > 1) name += " ...";
    line += option->get_required() ? " " + name : " [" + name + "]";
  }
  const std::string command =
      has_commands ? "acplan" : "acplan " + CommandPath(app);
  return "\\fB" + Plain(command) + "\\fR" + line;
}

std::string OptionEntry(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) {
    names.push_back("\\fB\\-" + Plain(name) + "\\fR");
  }
  for (const std::string& name : option.get_lnames()) {
    names.push_back("\\fB\\-\\-" + Plain(name) + "\\fR");
  }
  std::string tag = fmt::format("{}", fmt::join(names, ", "));
  if (option.get_positional()) {
    tag = "\\fI" + Plain(option.get_name(true)) + "\\fR";
  } else if (option.get_expected_max() > 0 && option.get_type_size() != 0) {
    tag += " \\fI" + Plain(option.get_type_name()) + "\\fR";
    if (option.get_expected_max() > 1) tag += " ...";
  }
  return fmt::format(".TP\n{}\n{}{}\n", tag, Plain(option.get_description()),
                     option.get_required() ? " (required)" : "");
}

std::string OptionSection(const std::string& title,
                          const std::vector<const CLI::Option*>& options) {
  if (options.empty()) return "";
  std::string section = ".SH " + title + "\n";
  for (const CLI::Option* option : options) section += OptionEntry(*option);
  return section;
}

// Returns the section of notes. Indented lines of the footer are shown
// unchanged.
std::string Notes(const std::string& footer) {
  if (footer.empty()) return "";
  std::string section = ".SH NOTES\n";
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) {
      section += ".PP\n.in +4n\n.nf\n" + Plain(line.substr(2)) + "\n.fi\n.in\n";
    } else if (!line.empty()) {
      section += ".PP\n" + Plain(line) + "\n";
    }
  }
  return section;
}

std::string Page(const CLI::App& app,
                 const std::vector<const CLI::App*>& commands) {
  const bool is_program = app.get_parent() == nullptr;
  const std::string name = PageName(app);
  std::string page = fmt::format(
      ".TH {} 1 \"\" \"acplan {}\" acplan\n.SH NAME\n{} \\- {}\n"
      ".SH SYNOPSIS\n{}\n",
      Plain(Upper(name)), ACPLAN_VERSION, Plain(name),
      Plain(app.get_description()), Synopsis(app, is_program));
  page += OptionSection("ARGUMENTS", ShownOptions(app, true));
  if (is_program) page += ".SH COMMANDS\n";
  for (const CLI::App* command : commands) {
    if (!is_program) break;
    page += fmt::format(".TP\n\\fB{}\\fR(1)\n{}\n", Plain(PageName(*command)),
                        Plain(command->get_description()));
  }
  page += OptionSection("OPTIONS", ShownOptions(app, false));
  page += Notes(app.get_footer());
  if (!is_program) page += ".SH SEE ALSO\n\\fBacplan\\fR(1)\n";
  return page;
}

}  // namespace

Command AddManualCommand(CLI::App& program) {
  auto folder = std::make_shared<std::string>();
  CLI::App* app = program.add_subcommand(
      "man", "Write the manual pages, one for each command");
  app->add_option("FOLDER", *folder,
                  "folder for acplan.1, acplan-plan.1, ...; made if missing")
      ->required();
  app->footer("Example:\n  acplan man .");
  return {app, [folder, &program](const Terminal&) {
            std::error_code error;  // WriteFiles reports it
            std::filesystem::create_directories(*folder, error);
            std::vector<const CLI::App*> pages = CommandsOf(program);
            const std::vector<const CLI::App*> commands = pages;
            pages.push_back(&program);
            std::vector<graph::NamedText> files;
            for (const CLI::App* page : pages) {
              files.push_back(
                  {std::filesystem::path(*folder) / (PageName(*page) + ".1"),
                   Page(*page, commands)});
            }
            graph::WriteFiles(files);
            return kExitOk;
          }};
}

}  // namespace acplan::cli
