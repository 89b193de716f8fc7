#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/cli_test.h"

namespace acplan::cli {

// Runs `acplan simulate FLAG FILE` on a file with a text.
class SimulatedFileTest : public CliTest {
 protected:
  SimulatedFileTest(std::string flag, std::string text)
      : flag_(std::move(flag)), text_(std::move(text)) {}

  Outcome Run(std::vector<std::string> more = {}) const {
    PutFile("simulated", text_);
    more.insert(more.begin(), {"simulate", flag_, "simulated"});
    return Acplan(more);
  }

  nlohmann::json Json(std::vector<std::string> more = {}) const {
    more.emplace_back("--json");
    const Outcome outcome = Run(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }

 private:
  std::string flag_;
  std::string text_;
};

}  // namespace acplan::cli
