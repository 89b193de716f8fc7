#include "graph/allocator/allocator_events.h"

#include <gmock/gmock.h>

#include <string>

#include "graph/base/input_error.h"

namespace acplan::graph {
namespace {

using Kind = AllocatorEvent::Kind;

std::string EventsErrorOf(const std::string& text) {
  try {
    ParseAllocatorEvents(text, "events.txt");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(AllocatorEvents, ReadsEveryKind) {
  const AllocatorEvents events = ParseAllocatorEvents(
      "# a comment\n\na 7 100\na 8 200 3\r\ns 7 3\nf 7\ne\na 7 1\n", "x");
  ASSERT_EQ(events.events.size(), 6);
  EXPECT_EQ(events.events[0].kind, Kind::kAllocate);
  EXPECT_EQ(events.events[0].bytes, 100);
  EXPECT_EQ(events.events[0].stream, 0);
  EXPECT_EQ(events.events[1].stream, 3);
  EXPECT_EQ(events.events[2].kind, Kind::kRecordStream);
  EXPECT_EQ(events.events[2].block, 0);
  EXPECT_EQ(events.events[2].stream, 3);
  EXPECT_EQ(events.events[3].kind, Kind::kFree);
  EXPECT_EQ(events.events[4].kind, Kind::kEmptyCache);
  EXPECT_EQ(events.events[5].block, 2);
  EXPECT_THAT(events.block_ids, testing::ElementsAre(7, 8, 7));
  EXPECT_THAT(events.lines, testing::ElementsAre(3, 4, 5, 6, 7, 8));
}

TEST(AllocatorEvents, ReadsPrivatePools) {
  const AllocatorEvents events =
      ParseAllocatorEvents("g 5\nq 5\np 5\nq 5\nd 5\nd 5\n", "x");
  ASSERT_EQ(events.events.size(), 6);
  EXPECT_EQ(events.events[0].kind, Kind::kBeginCapture);
  EXPECT_EQ(events.events[1].kind, Kind::kEndPool);
  EXPECT_EQ(events.events[2].kind, Kind::kBeginPool);
  EXPECT_EQ(events.events[5].kind, Kind::kReleasePool);
  EXPECT_EQ(events.events[5].pool, 5);
}

TEST(AllocatorEvents, RefusesWhatIsNoEvent) {
  EXPECT_EQ(
      EventsErrorOf("a 1 5\nx 1"),
      "events.txt, line 2: expected a, f, s, e, g, p, q or d, found \"x\"");
  EXPECT_EQ(EventsErrorOf("a 1"),
            "events.txt, line 1: expected \"a ID BYTES "
            "[STREAM]\"");
  EXPECT_EQ(EventsErrorOf("a 1 2 3 4"),
            "events.txt, line 1: expected \"a ID BYTES "
            "[STREAM]\"");
  EXPECT_EQ(EventsErrorOf("e 1"), "events.txt, line 1: expected \"e\"");
  EXPECT_EQ(EventsErrorOf("a one 5"),
            "events.txt, line 1: the ID: expected a whole number, found "
            "\"one\"");
  EXPECT_EQ(EventsErrorOf("a 1 -5"),
            "events.txt, line 1: the bytes: expected a whole number, found "
            "\"-5\"");
  EXPECT_EQ(EventsErrorOf("a 1 1e9").substr(0, 29),
            "events.txt, line 1: the bytes");
  EXPECT_EQ(EventsErrorOf("a 1 2000000000000000"),
            "events.txt, line 1: the bytes: expected at most "
            "1125899906842624, found 2000000000000000");
  EXPECT_EQ(EventsErrorOf("f 1"),
            "events.txt, line 1: no block 1 is allocated");
  EXPECT_EQ(EventsErrorOf("a 1 5\nf 1\nf 1"),
            "events.txt, line 3: no block 1 is allocated");
  EXPECT_EQ(EventsErrorOf("a 1 5\na 1 5"),
            "events.txt, line 2: block 1 is allocated already");
  EXPECT_EQ(EventsErrorOf("q 1"), "events.txt, line 1: pool 1 does not serve");
  EXPECT_EQ(EventsErrorOf("g 1\np 1"),
            "events.txt, line 2: pool 1 serves already");
  EXPECT_EQ(EventsErrorOf("p 1\nd 1"),
            "events.txt, line 2: pool 1 still serves");
  EXPECT_EQ(EventsErrorOf("d 1"), "events.txt, line 1: pool 1 has no user");
  EXPECT_EQ(EventsErrorOf("g 1\nq 1\nd 1\ng 1"),
            "events.txt, line 4: pool 1 is released");
  EXPECT_EQ(EventsErrorOf("g"), "events.txt, line 1: expected \"g POOL\"");
  EXPECT_EQ(EventsErrorOf("s 1 2"),
            "events.txt, line 1: no block 1 is allocated");
}

TEST(AllocatorEvents, RefusesCommentsWithoutEnd) {
  const std::string line = "#" + std::string(1 << 20, 'c') + "\n";
  std::string text = "a 1 512\n";
  for (int k = 0; k < 64; ++k) text += line;
  EXPECT_THROW(ParseAllocatorEvents(text, "events"), InputError);
}

TEST(AllocatorEvents, NamesFilesThatAreNotThere) {
  EXPECT_THROW(ReadAllocatorEvents("/no/such/file"), InputError);
}

}  // namespace
}  // namespace acplan::graph
