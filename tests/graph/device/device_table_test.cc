#include "graph/device/device_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "graph/base/input_error.h"

namespace acplan::graph {
namespace {

using ::testing::HasSubstr;

constexpr double kGiBytes = 1024.0 * 1024 * 1024;
constexpr char kColumns[] =
    "gpu,aliases,architecture,nominal_gib,capacity_gib,context_gib,software,"
    "source\n";

const DeviceTable& Bundled() {
  static const DeviceTable kTable =
      ReadDeviceTable(ACPLAN_DATA_DIR "/devices/memory.csv");
  return kTable;
}

std::string ErrorOf(const std::string& rows) {
  try {
    ParseDeviceTable(kColumns + rows, "devices.csv");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceTable, HasASourceForEachRow) {
  EXPECT_GE(Bundled().sources.size(), 35U);
  for (const DeviceSource& source : Bundled().sources) {
    EXPECT_FALSE(source.source.empty()) << source.gpu;
    // Where nothing was read off a GPU, the source says so.
    EXPECT_EQ(!source.capacity_gib, source.source.ends_with("no message found"))
        << source.gpu;
  }
}

// Messages say 79.1 to 79.3 GiB of 80 GB cards, 23.6 to 23.7 of 24.
TEST(DeviceTable, OffersWhatMessagesSay) {
  const DeviceOffer card = OfferOf(Bundled(), "RTX 4090", "device");
  EXPECT_EQ(card.gpu, "rtx4090");
  EXPECT_NEAR(static_cast<double>(card.capacity_bytes), 23.61 * kGiBytes, 1);
  // The most of its architecture, whose L40 has it.
  EXPECT_NEAR(static_cast<double>(card.context_bytes), .495 * kGiBytes, 1);
  const DeviceOffer h100 = OfferOf(Bundled(), "H100-SXM5", "device");
  EXPECT_EQ(h100, OfferOf(Bundled(), "h100", "device"));
  EXPECT_NEAR(static_cast<double>(h100.capacity_bytes), 79.11 * kGiBytes, 1);
}

TEST(DeviceTable, SaysWhereItHasNoReading) {
  const DeviceOffer gh200 = OfferOf(Bundled(), "gh200", "device");
  EXPECT_FALSE(gh200.has_capacity);
  EXPECT_NEAR(static_cast<double>(gh200.capacity_bytes),
              kShareOfNominal * 96 * kGiBytes, 1);
  EXPECT_TRUE(gh200.has_context);
  EXPECT_FALSE(OfferOf(Bundled(), "b200", "device").has_context);
}

// The defaults are the worst of the table: no reading of HBM is below the share, and no
// context above the default.
TEST(DeviceTable, HasDefaultsThatItsRowsBear) {
  double largest = 0;
  for (const DeviceSource& source : Bundled().sources) {
    largest = std::max(largest, source.context_gib.value_or(0));
    const bool has_hbm = source.architecture == "sm70" ||
                         source.architecture == "sm80" ||
                         source.architecture == "sm90" ||
                         source.architecture.starts_with("sm10");
    if (!has_hbm || !source.capacity_gib) continue;
    EXPECT_GE(*source.capacity_gib, kShareOfNominal * source.nominal_gib)
        << source.source;
  }
  EXPECT_EQ(largest, kDefaultContextGib);
}

TEST(DeviceTable, NamesTheNearestGpu) {
  try {
    OfferOf(Bundled(), "RTX 4091", "--device-memory");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--device-memory: expected a size"));
    EXPECT_THAT(error.what(), HasSubstr("found \"RTX 4091\""));
    EXPECT_THAT(error.what(), HasSubstr("did you mean rtx4090?"));
  }
  EXPECT_FALSE(FindOffer(Bundled(), "").has_value());
}

TEST(DeviceTable, RefusesRowsThatSayNothingOrContradict) {
  EXPECT_THAT(ErrorOf("a,,sm90,80,79,,,\n"), HasSubstr("line 2: source"));
  EXPECT_THAT(ErrorOf("a,,,80,79,,,here\n"), HasSubstr("architecture"));
  EXPECT_THAT(ErrorOf("a,,sm90,80,81,,,here\n"),
              HasSubstr("at most nominal_gib"));
  EXPECT_THAT(ErrorOf("a,,sm90,80,79,79,,here\n"),
              HasSubstr("less than capacity_gib"));
  EXPECT_THAT(ErrorOf("a,,sm90,80,-1,,,here\n"), HasSubstr("capacity_gib"));
  EXPECT_THAT(ErrorOf("a,,sm90,80,79,,,here\na,,sm90,81,79,,,there\n"),
              HasSubstr("line 3: nominal_gib"));
  EXPECT_THAT(ErrorOf("a,,sm90,80,79,,,here\na,,sm80,80,79,,,there\n"),
              HasSubstr("line 3: architecture"));
  EXPECT_EQ(ErrorOf("a,,sm90,80,79,1,,here\na,b c,sm90,80,,,,there\n"), "");
}

}  // namespace
}  // namespace acplan::graph
