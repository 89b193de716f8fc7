#pragma once

#include <filesystem>
#include <string_view>

#include "cli/input/profile_input.h"
#include "graph/base/input_error.h"
#include "graph/profile/profile.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// Reads a plan file that has a plan for the profile's model. Throws InputError
// if the file has no plan, names another model, or has a table of plans.
problems::Plan ReadAnswer(const std::filesystem::path& path,
                          const graph::Profile& profile);
problems::Plan ReadAnswer(const std::filesystem::path& path,
                          std::string_view model);

// Throws InputError, naming the commands for it, if a file's text is a table of plans.
void RefuseTable(std::string_view text, const std::filesystem::path& path,
                 std::string_view expected);

// Makes one check of ReadAnswer that needs no profile, as RequireModel does.
// Throws InputError that names the file.
void RequireAnswer(const problems::Plan& plan,
                   const std::filesystem::path& path);
void RequireModel(const problems::Plan& plan, std::string_view model,
                  const std::filesystem::path& path);

// Throws InputError, naming the plan's file, for the trace memory model without
// a trace.
void RequireTrace(const problems::MemoryOptions& memory,
                  const ProfileInput& input, const std::filesystem::path& path);

// Returns the trace and its profile with the segments that a plan on it names;
// the input unchanged if there are none. Throws InputError that names the
// plan's file.
ProfileInput WithSegmentsOf(ProfileInput input, const problems::Plan& plan,
                            const std::filesystem::path& path);

// Returns the complaint about a plan ("plan: ...") with the name of the plan's
// file.
InputError NamingFile(const InputError& error,
                      const std::filesystem::path& path);

}  // namespace acplan::cli
