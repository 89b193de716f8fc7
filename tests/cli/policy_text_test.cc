#include "cli/planning/policy_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace acplan::cli {

namespace {

using problems::PlannedModule;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

PlannedModule UnitWith(const std::string& fqn, double ratio = 0.5,
                       const std::string& policy = "10") {
  PlannedModule unit{.fqn = fqn,
                     .discard_ratio = ratio,
                     .memory_budget = 1 - ratio,
                     .discarded_bytes = 100,
                     .recompute_ms = 2,
                     .ops = {}};
  for (size_t k = 0; k < policy.size(); ++k) {
    unit.ops.push_back({.index = static_cast<int>(k),
                        .name = "mm",
                        .decision = graph::SaveOrRecompute(policy[k] == '1')});
  }
  return unit;
}

// Returns the names and sizes of groups.
std::vector<std::pair<std::string, size_t>> Groups(
    const std::vector<PlannedModule>& units) {
  std::vector<std::pair<std::string, size_t>> groups;
  for (const UnitGroup& group : GroupUnits(units)) {
    groups.emplace_back(group.name, group.units.size());
  }
  return groups;
}

TEST(GroupUnitsTest, UnitsThatDifferInOneNumber) {
  EXPECT_THAT(Groups({}), IsEmpty());
  EXPECT_THAT(Groups({UnitWith("M")}), ElementsAre(Pair("M", 1)));
  EXPECT_THAT(Groups({UnitWith("M.h.3")}), ElementsAre(Pair("M.h.3", 1)));
  EXPECT_THAT(Groups({UnitWith("M.h.0"), UnitWith("M.h.1"), UnitWith("M.h.2")}),
              ElementsAre(Pair("M.h.0-2", 3)));
  EXPECT_THAT(Groups({UnitWith("M.h.0.mlp"), UnitWith("M.h.1.mlp")}),
              ElementsAre(Pair("M.h.0-1.mlp", 2)));
}

TEST(GroupUnitsTest, Ranges) {
  EXPECT_THAT(Groups({UnitWith("h.9"), UnitWith("h.10"), UnitWith("h.0"),
                      UnitWith("h.2"), UnitWith("h.11"), UnitWith("h.4"),
                      UnitWith("h.5")}),
              ElementsAre(Pair("h.0,2,4-5,9-11", 7)));
}

TEST(GroupUnitsTest, OnlyWhatDoesTheSame) {
  EXPECT_THAT(Groups({UnitWith("h.0"), UnitWith("h.1", 0.6), UnitWith("h.2")}),
              ElementsAre(Pair("h.0,2", 2), Pair("h.1", 1)));
  EXPECT_THAT(
      Groups({UnitWith("h.0"), UnitWith("h.1", 0.5, "01"), UnitWith("h.2")}),
      ElementsAre(Pair("h.0,2", 2), Pair("h.1", 1)));
  std::vector<PlannedModule> units{UnitWith("h.0"), UnitWith("h.1"),
                                   UnitWith("h.2")};
  units[1].discarded_bytes += 1;
  EXPECT_THAT(Groups(units), ElementsAre(Pair("h.0,2", 2), Pair("h.1", 1)));
}

TEST(GroupUnitsTest, TheNoiseOfASumIsNoDifference) {
  std::vector<PlannedModule> units{UnitWith("h.0"), UnitWith("h.1"),
                                   UnitWith("h.2")};
  units[1].recompute_ms *= 1 + 1e-15;
  units[2].recompute_ms *= 1.001;
  EXPECT_THAT(Groups(units), ElementsAre(Pair("h.0-1", 2), Pair("h.2", 1)));
}

TEST(GroupUnitsTest, NamesWithSeveralNumbers) {
  // The number that more units share is folded.
  EXPECT_THAT(
      Groups({UnitWith("s.0.l.0"), UnitWith("s.0.l.1"), UnitWith("s.1.l.0"),
              UnitWith("s.2.l.0"), UnitWith("s.2.l.1")}),
      ElementsAre(Pair("s.0-2.l.0", 3), Pair("s.0,2.l.1", 2)));
  EXPECT_THAT(Groups({UnitWith("s.0.l.0"), UnitWith("s.0.l.1"),
                      UnitWith("s.0.l.2"), UnitWith("s.1.l.0")}),
              ElementsAre(Pair("s.0.l.0-2", 3), Pair("s.1.l.0", 1)));
}

TEST(GroupUnitsTest, NamesWithoutNumbersStand) {
  EXPECT_THAT(Groups({UnitWith("M.attn"), UnitWith("M.mlp"), UnitWith("M.h1"),
                      UnitWith("M.h2")}),
              ElementsAre(Pair("M.attn", 1), Pair("M.mlp", 1), Pair("M.h1", 1),
                          Pair("M.h2", 1)));
}

TEST(GroupUnitsTest, NumbersThatWouldReadAnotherWayStand) {
  EXPECT_THAT(Groups({UnitWith("h.07"), UnitWith("h.7"), UnitWith("h.8")}),
              ElementsAre(Pair("h.07", 1), Pair("h.7-8", 2)));
  EXPECT_THAT(Groups({UnitWith("h.12345678901234567890"), UnitWith("h.1")}),
              ElementsAre(Pair("h.12345678901234567890", 1), Pair("h.1", 1)));
}

TEST(GroupUnitsTest, UnitsStayInThePlansOrder) {
  const std::vector<PlannedModule> units{UnitWith("h.2"), UnitWith("a"),
                                         UnitWith("h.0")};
  const std::vector<UnitGroup> groups = GroupUnits(units);
  ASSERT_EQ(groups.size(), 2);
  EXPECT_THAT(groups[0].units, ElementsAre(&units[0], &units[2]));
  EXPECT_THAT(groups[1].units, ElementsAre(&units[1]));
}

// Returns the text of a policy: an operator whose name has '+' is saved, '-'
// skipped, '/' view-like.
std::string Text(const std::vector<std::string>& ops) {
  PlannedModule unit;
  graph::SacStatistics sac;
  for (size_t k = 0; k < ops.size(); ++k) {
    const char mark = ops[k].front();
    const std::string name =
        mark == '+' || mark == '-' || mark == '/' ? ops[k].substr(1) : ops[k];
    unit.ops.push_back({.index = static_cast<int>(k),
                        .name = name,
                        .decision = mark == '-'
                                        ? graph::OperatorDecision::kSkip
                                        : graph::SaveOrRecompute(mark == '+')});
    if (mark == '/') sac.view_like_ops.push_back(static_cast<int>(k));
  }
  return PolicyText(unit, sac);
}

TEST(PolicyTextTest, TheShorterSideIsSpelledOut) {
  EXPECT_EQ(Text({"+mm", "gelu", "add"}), "save mm; recompute 2 others");
  EXPECT_EQ(Text({"+mm", "+bmm", "gelu"}), "recompute gelu; save 2 others");
  EXPECT_EQ(Text({"+mm", "gelu"}), "save mm; recompute 1 other");
  EXPECT_EQ(Text({"mm", "gelu"}), "recompute all 2");
  EXPECT_EQ(Text({"+mm", "+gelu"}), "save all 2");
}

TEST(PolicyTextTest, ViewsAreNotCounted) {
  EXPECT_EQ(Text({"/view", "+mm", "/t", "gelu", "add", "/view"}),
            "save mm; recompute 2 others");
  EXPECT_EQ(Text({"/view", "+mm", "/t"}), "save all 1");
  EXPECT_EQ(Text({"/view", "mm", "/t"}), "recompute all 1");
}

TEST(PolicyTextTest, WhatIsSkippedIsCounted) {
  EXPECT_EQ(Text({"+mm", "gelu", "add", "-mm"}),
            "save mm; recompute 2 others; skip 1 other");
  EXPECT_EQ(Text({"gelu", "-add", "-mm"}), "recompute gelu; skip 2 others");
  EXPECT_EQ(Text({"+gelu", "-add", "-mm"}), "save gelu; skip 2 others");
  EXPECT_EQ(Text({"-add", "/view", "-mm"}), "skip all 2");
}

TEST(PolicyTextTest, LongListsAreCounted) {
  EXPECT_EQ(Text({"+mm", "+mm", "+add", "+mm", "a", "a", "a", "a"}),
            "save mm, mm, add, mm; recompute 4 others");
  EXPECT_EQ(
      Text({"+mm", "+add", "+mm", "+gelu", "+mm", "a", "a", "a", "a", "a"}),
      "save mm × 3, add, gelu; recompute 5 others");
}

TEST(PolicyTextTest, VeryLongListsAreCut) {
  std::vector<std::string> ops;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
    ops.push_back(std::string("+") + name);
  }
  ops.insert(ops.end(), {"+a", "x", "x", "x", "x", "x", "x", "x", "x", "x", "x",
                         "x", "x"});
  EXPECT_EQ(Text(ops), "save a × 2, b, c, d, e, f, g, h; recompute 12 others");
  ops.insert(ops.end(), {"+i", "+j", "+i"});
  EXPECT_EQ(Text(ops),
            "save a × 2, b, c, d, e, f, g, h, 3 more; recompute 12 others");
}

TEST(PolicyTextTest, NamesStayOnOneLine) {
  EXPECT_EQ(Text({"+m\nm", "gelu"}), "save m\\nm; recompute 1 other");
}

}  // namespace

}  // namespace acplan::cli
