#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "graph/base/file_io.h"
#include "tests/cli/cli_test.h"

// Files that are pipes: what they hold comes once.

namespace acplan::cli {
namespace {

constexpr char kPipe[] = "pipe.json";
constexpr char kTraceOfPipes[] = ACPLAN_DATA_DIR "/traces/gpt2_tiny.json.gz";

class PipesTest : public CliTest {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    AcplanOut({"plan", kTraceOfPipes, "--budget", "99%", "-o", "plan.json"});
    PutFile("lengths.txt", "32\n32\n");
    AcplanOut({"lengths", "plan", std::string("32=") + kTraceOfPipes,
               "--lengths", "lengths.txt", "--device-memory", "1GiB", "-o",
               "table.json"});
    AcplanOut(
        {"frontier", kTraceOfPipes, "--points", "2", "-o", "frontier.json"});
  }

  // Returns the outcome of a command in which kPipe is a pipe with a file's text.
  Outcome WithPipe(const std::vector<std::string>& arguments,
                   const std::string& file) const {
    const std::string pipe = (folder() / kPipe).string();
    EXPECT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    const std::string text = graph::ReadFile(folder() / file);
    std::thread writer([&] {
      const int descriptor = open(pipe.c_str(), O_WRONLY | O_CLOEXEC);
      for (size_t at = 0; at < text.size();) {
        const ssize_t bytes =
            write(descriptor, text.data() + at, text.size() - at);
        if (bytes <= 0) break;
        at += static_cast<size_t>(bytes);
      }
      close(descriptor);
    });
    Outcome outcome = Acplan(arguments);
    // Lets a writer go that nobody reads from.
    close(open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    writer.join();
    unlink(pipe.c_str());
    return outcome;
  }
};

TEST_F(PipesTest, AreReadOnce) {
  struct Case {
    std::string file;
    std::vector<std::string> arguments;
  };
  const std::string trace = kTraceOfPipes;
  const std::string profile = ProfilePath("transformer4");
  const std::vector<Case> cases = {
      {trace, {"plan", kPipe, "--budget", "99%"}},
      {profile, {"plan", kPipe, "--budget", "99%"}},
      {profile, {"report", kPipe, "--points", "0", "-o", "r.html"}},
      {trace, {"report", kPipe, "--points", "0", "-o", "r.html"}},
      {"plan.json", {"report", trace, kPipe, "--points", "0", "-o", "r.html"}},
      {"frontier.json", {"report", trace, "--frontier", kPipe, "-o", "r.html"}},
      {"plan.json", {"check", trace, kPipe, "--budget", "99%"}},
      {"plan.json", {"show", trace, kPipe}},
      {"plan.json", {"explain", trace, "--plan", kPipe}},
      {"plan.json", {"simulate", trace, kPipe}},
      {"table.json",
       {"lengths", "check", "32=" + trace, "--lengths", "lengths.txt", "--plan",
        kPipe}},
      {"table.json",
       {"lengths", "simulate", "32=" + trace, "--lengths", "lengths.txt",
        "--plan", kPipe}},
      {"lengths.txt",
       {"lengths", "simulate", "32=" + trace, "--lengths", kPipe}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::PrintToString(c.arguments));
    PutFile(kPipe, graph::ReadFile(folder() / c.file));
    const Outcome of_file = Acplan(c.arguments);
    EXPECT_EQ(of_file.exit_code, 0) << of_file.err;
    unlink((folder() / kPipe).c_str());
    const Outcome of_pipe = WithPipe(c.arguments, c.file);
    EXPECT_EQ(of_pipe.exit_code, 0) << of_pipe.err;
    EXPECT_EQ(of_pipe.err, of_file.err);
    // But for the seconds that a search took.
    EXPECT_EQ(Lines(of_pipe.out).size(), Lines(of_file.out).size());
  }
}

// The note of a shard is at its end.
TEST_F(PipesTest, AreNoShards) {
  PutFile("part.json", "{}");
  ASSERT_EQ(mkfifo((folder() / "shard.csv").c_str(), 0600), 0);
  ExpectRefused(
      Acplan({"calculon", "llm-merge", "shard.csv", "part.json", "out.csv"}),
      {"shard.csv: expected a file, found a pipe"});
}

}  // namespace
}  // namespace acplan::cli
